"""A kubelet's pod-resources socket: a real gRPC server, and messages that protobuf itself encodes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

STRING, MESSAGE, INT64 = 9, 11, 3
_SCHEMA = {
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources")],
    "PodResources": [("name", 1, STRING), ("namespace", 2, STRING), ("containers", 3, "ContainerResources")],
    "ContainerResources": [
        ("name", 1, STRING), ("devices", 2, "ContainerDevices"), ("cpu_ids", 3, INT64),
        ("dynamic_resources", 5, "DynamicResource"),
    ],
    "ContainerDevices": [("resource_name", 1, STRING), ("device_ids", 2, STRING), ("topology", 3, "TopologyInfo")],
    "TopologyInfo": [("nodes", 1, "NUMANode")],
    "NUMANode": [("ID", 1, INT64)],
    "DynamicResource": [("claim_name", 2, STRING), ("claim_namespace", 3, STRING), ("claim_resources", 4, "ClaimResource")],
    "ClaimResource": [("cdi_devices", 1, "CDIDevice"), ("driver_name", 2, STRING)],
    "CDIDevice": [("name", 1, STRING)],
}  # fmt: skip
_ONE = {"name", "namespace", "resource_name", "topology", "claim_name", "claim_namespace", "driver_name", "ID"}


@cache
def _types() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="pod_resources_for_tests.proto", package="v1", syntax="proto3")
    for message, fields in _SCHEMA.items():
        made = file.message_type.add(name=message)
        for name, number, kind in fields:
            field = made.field.add(name=name, number=number, label=1 if name in _ONE else 3)
            field.type = kind if isinstance(kind, int) else MESSAGE
            if isinstance(kind, str):
                field.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _SCHEMA
    }  # fmt: skip


def answer(*pods: dict[str, Any]) -> bytes:
    """A ListPodResourcesResponse, from plain data under the schema's names."""
    return _types()["ListPodResourcesResponse"](pod_resources=list(pods)).SerializeToString()


def pod(namespace: str, name: str, /, **containers: dict[str, list[str]]) -> dict[str, Any]:
    """A pod: container → resource → device ids."""
    return {
        "namespace": namespace,
        "name": name,
        "containers": [
            {
                "name": container,
                "cpu_ids": [0, 1, 300],
                "devices": [
                    {"resource_name": resource, "device_ids": ids, "topology": {"nodes": [{"ID": 0}]}}
                    for resource, ids in resources.items()
                ],
            }
            for container, resources in containers.items()
        ],
    }


class Kubelet:
    """What the server answers; `calls` counts."""

    def __init__(self) -> None:
        self.message = b""
        self.calls = 0
        self.error: grpc.StatusCode | None = None

    def list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls += 1
        if self.error is not None:
            context.abort(self.error, "scripted")
        return self.message


@asynccontextmanager
async def serving(socket: Path):
    """A kubelet on a socket."""
    kubelet = Kubelet()
    server = grpc.server(ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(kubelet.list)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": method}),))
    assert server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield kubelet
    finally:
        await asyncio.to_thread(server.stop(0).wait)
