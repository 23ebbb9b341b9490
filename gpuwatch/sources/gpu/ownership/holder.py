"""Who holds a device: a container of a pod, or processes, as far as a source names them."""

from __future__ import annotations

import msgspec


class Holder(msgspec.Struct, frozen=True, order=True):
    """One workload on a device. Empty: not told. `container_id` is the runtime's, `pid` the host's.

    `replica`: it was given one of several shares of the device (time slicing or MPS).
    """

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    container_id: str = ""
    pid: int = 0
    replica: bool = False

    @property
    def words(self) -> str:
        """Who it is, in one word: `namespace/pod/container`, the container, or the process."""
        if self.pod:
            return "/".join(part for part in (self.namespace, self.pod, self.container) if part)
        if self.pod_uid:
            return f"pod {self.pod_uid}"
        return f"container {self.container_id[:12]}" if self.container_id else f"process {self.pid}"
