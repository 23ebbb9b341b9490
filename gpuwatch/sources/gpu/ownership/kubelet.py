"""What the kubelet has given to whom: its pod-resources socket, `v1.PodResourcesLister/List`.

The socket is root's and read-only in effect: it answers which container of which pod was given which device ids. The
message is stepped over field by field; only names and device ids of GPU resources are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from .holder import Holder

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
METHOD = "/v1.PodResourcesLister/List"
ANSWER_BYTES = 4 * 1024 * 1024
"""Some 10 kB for a busy node; beyond this it is not believed."""
_GPU_RESOURCES = ("nvidia.com/", "amd.com/", "gpu.intel.com/")
_MOST = 4096
_TEXT = 300


class KubeletError(Exception):
    """The kubelet does not answer, or not so that it can be read."""


class Allocation(msgspec.Struct, frozen=True):
    """One container and the device ids that it was given, as the device plugin calls them."""

    holder: Holder
    ids: tuple[str, ...]


class Kubelet:
    """Asks one kubelet. Without its socket it is `absent`."""

    def __init__(self, socket: Path = SOCKET, timeout_s: float = 1.0) -> None:
        self.socket = socket
        self._timeout_s = timeout_s

    @property
    def absent(self) -> str:
        """Why it cannot be asked; empty where it can."""
        try:
            return "" if self.socket.is_socket() else f"no socket at {self.socket}"
        except OSError as error:
            return f"{self.socket}: {error.strerror or error}"

    async def list(self) -> tuple[Allocation, ...]:
        """Who has what. Raises KubeletError."""
        try:
            from ....wire.grpc.client import GrpcCaller
            from ....wire.grpc.message import GrpcError, unframed
        except ModuleNotFoundError as error:
            raise KubeletError(f"the package {error.name} is not installed") from error
        caller = GrpcCaller(
            "localhost", 0, METHOD, timeout_s=self._timeout_s, socket=str(self.socket), answer_bytes=ANSWER_BYTES
        )
        try:
            return allocations(unframed(await caller.call(b""), "")[0])
        except GrpcError as error:
            raise KubeletError(f"{self.socket}: {error.why or error}") from error
        finally:
            await caller.aclose()


def allocations(message: bytes) -> tuple[Allocation, ...]:
    """Containers with GPUs in a ListPodResourcesResponse. Raises KubeletError for what is none."""
    from ....wire.otlp.body import OtlpError

    try:
        found: list[Allocation] = []
        for at, end in _values(message, 0, len(message), 1):
            found += _pod(message, at, end)
            if len(found) >= _MOST:
                raise KubeletError(f"more than {_MOST} containers with devices")
        return tuple(found)
    except (OtlpError, IndexError) as error:
        raise KubeletError(f"not a list of pod resources: {error}") from None


def _pod(body: bytes, at: int, end: int) -> Iterator[Allocation]:
    name, namespace = _text(body, at, end, 1), _text(body, at, end, 2)
    for begin, until in _values(body, at, end, 3):
        ids = tuple(dict.fromkeys((*_plugin_ids(body, begin, until), *_claimed_ids(body, begin, until))))
        if ids:
            shared = any(_is_replica(one) for one in ids)
            yield Allocation(Holder(namespace, name, _text(body, begin, until, 1), replica=shared), ids)


def _plugin_ids(body: bytes, at: int, end: int) -> Iterator[str]:
    """Devices of device plugins, of GPU resources."""
    for begin, until in _values(body, at, end, 2):
        if _text(body, begin, until, 1).startswith(_GPU_RESOURCES):
            yield from (body[a:b].decode("utf-8", "replace")[:_TEXT] for a, b in _values(body, begin, until, 2))


def _claimed_ids(body: bytes, at: int, end: int) -> Iterator[str]:
    """Devices of dynamic resource claims: what a CDI name says behind its `=`, such as `k8s.gpu.nvidia.com/gpu=GPU-…`."""
    for claim in _values(body, at, end, 5):
        for resource in _values(body, *claim, 4):
            for device in _values(body, *resource, 1):
                kind, _, name = _text(body, *device, 1).partition("=")
                if "gpu" in kind and name:
                    yield name


def _is_replica(id: str) -> bool:
    return "::" in id or "/vgpu" in id


def _values(body: bytes, at: int, end: int, number: int) -> Iterator[tuple[int, int]]:
    """Where the length-delimited values of one field lie."""
    from ....wire.otlp.wire import LENGTH, fields

    for field, wire, begin, until in fields(body, at, end):
        if field == number and wire == LENGTH:
            yield begin, until


def _text(body: bytes, at: int, end: int, number: int) -> str:
    for begin, until in _values(body, at, end, number):
        return body[begin:until].decode("utf-8", "replace")[:_TEXT]
    return ""
