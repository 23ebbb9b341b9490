"""The kubelet's pod-resources socket: a real gRPC server over a real socket, and whatever may stand in its place."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.gpu.ownership.holder import Holder
from gpuwatch.sources.gpu.ownership.kubelet import ANSWER_BYTES, Allocation, Kubelet, KubeletError, allocations
from tests.ownership.kubelet_server import answer, pod, serving

pytestmark = pytest.mark.anyio
A, B = "GPU-5a0c1b2d-0000-4000-8000-00000000a100", "GPU-5a0c1b2d-0000-4000-8000-00000000a101"


async def test_a_kubelet_tells_which_container_was_given_which_device(tmp_path):
    """Whole devices, MIG instances and shares; other resources are not devices of ours."""
    async with serving(tmp_path / "kubelet.sock") as kubelet:
        kubelet.message = answer(
            pod("llm", "decode-0", vllm={"nvidia.com/gpu": [A, B], "rdma/hca": ["mlx5_0"]}, sidecar={}),
            pod("llm", "small-0", server={"nvidia.com/mig-1g.10gb": ["MIG-11111111-2222-3333-4444-555555555555"]}),
            pod("dev", "notebook", main={"nvidia.com/gpu.shared": [f"{A}::3"]}),
            pod("kube-system", "dns", dns={}),
        )
        found = await Kubelet(tmp_path / "kubelet.sock").list()
    assert found == (
        Allocation(Holder("llm", "decode-0", "vllm"), (A, B)),
        Allocation(Holder("llm", "small-0", "server"), ("MIG-11111111-2222-3333-4444-555555555555",)),
        Allocation(Holder("dev", "notebook", "main", replica=True), (f"{A}::3",)),
    )


async def test_devices_of_dynamic_resource_claims_are_read_by_their_cdi_names(tmp_path):
    """A claim names no resource; the device is behind the `=` of its CDI name."""
    claimed = pod("llm", "decode-0", vllm={})
    names = [{"name": f"k8s.gpu.nvidia.com/gpu={A}"}, {"name": "k8s.net/nic=eth1"}]
    claimed["containers"][0]["dynamic_resources"] = [
        {"claim_name": "gpus", "claim_resources": [{"driver_name": "gpu.nvidia.com", "cdi_devices": names}]}
    ]
    assert allocations(answer(claimed)) == (Allocation(Holder("llm", "decode-0", "vllm"), (A,)),)


async def test_a_kubelet_that_refuses_is_an_error_with_its_words(tmp_path):
    async with serving(tmp_path / "k.sock") as kubelet:
        kubelet.error = grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(KubeletError, match="scripted"):
            await Kubelet(tmp_path / "k.sock").list()


async def test_an_answer_without_end_is_not_read(tmp_path):
    async with serving(tmp_path / "k.sock") as kubelet:
        kubelet.message = b"\x0a" + b"\x00" * (ANSWER_BYTES + 1)
        with pytest.raises(KubeletError):
            await Kubelet(tmp_path / "k.sock", timeout_s=10).list()


async def test_without_a_socket_it_is_absent_and_says_where_it_was_looked_for(tmp_path):
    assert "kubelet.sock" in Kubelet(tmp_path / "kubelet.sock").absent
    (tmp_path / "file").write_text("")
    assert Kubelet(tmp_path / "file").absent
    with pytest.raises(KubeletError):
        await Kubelet(tmp_path / "kubelet.sock").list()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_an_error(body):
    try:
        assert isinstance(allocations(body), tuple)
    except KubeletError:
        return


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_damaged_answer_is_a_list_or_an_error(at, byte):
    body = bytearray(answer(pod("llm", "decode-0", vllm={"nvidia.com/gpu": [A]})))
    body[at % len(body)] = byte
    try:
        assert isinstance(allocations(bytes(body)), tuple)
    except KubeletError:
        return
