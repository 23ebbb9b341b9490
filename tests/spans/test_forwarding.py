"""Exports passed on to a second receiver: the same bytes, over either protocol, and no harm when it is away."""

import gzip

import anyio
import pytest

from gpuwatch.sinks.trace_forwarder import MOST_BYTES, Forwarder
from tests.spans.exports import JSON, PROTO, T0, as_json
from tests.spans.receiver import Receiver
from tests.spans.test_dialects import VLLM_V1, vllm

pytestmark = pytest.mark.anyio


def target(receiver, protocol):
    return f"grpc://127.0.0.1:{receiver.grpc.port}" if protocol == "grpc" else receiver.url


@pytest.mark.parametrize("out", ["http", "grpc"])
@pytest.mark.parametrize("way_in", ["http", "grpc"])
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
async def test_the_collector_gets_the_bytes_that_came(way_in, out, compressed):
    import grpc

    body = vllm(VLLM_V1 | {"gen_ai.prompt.0.content": "what the user asked stays the user's"}).body
    async with Receiver() as collector, Receiver(forward_traces_url=target(collector, out)) as agent:
        if way_in == "grpc":
            code = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
            assert (await agent.call(body, code))[0] == 0
        else:
            headers = {"Content_Encoding": "gzip"} if compressed else {}
            assert (await agent.post(gzip.compress(body) if compressed else body, **headers))[0] == 200
        await agent.desk.forwarder.pump(T0 + 1.0)
        assert collector.seen.bodies == agent.seen.bodies
        assert agent.desk.forwarder.counts == {"sent": 1}


async def test_json_goes_on_over_http_and_has_no_form_in_grpc():
    body = as_json(vllm(VLLM_V1).message)
    async with Receiver() as collector:
        for protocol, counts in (("http", {"sent": 1}), ("grpc", {"rejected": 1})):
            async with Receiver(forward_traces_url=target(collector, protocol)) as agent:
                await agent.post(body, JSON)
                await agent.desk.forwarder.pump(T0 + 1.0)
                assert agent.desk.forwarder.counts == counts
        assert collector.seen.bodies == [(body, JSON, "")]


async def test_what_was_not_taken_is_not_passed_on():
    """Its sender tries again, or knows that it is wrong: passing it on would double it, or spread it."""
    async with Receiver(forward_traces_url="http://127.0.0.1:1/v1/traces", bounds={"spans_waiting": 1}) as agent:
        assert (await agent.post(vllm(VLLM_V1).body))[0] == 503
        assert (await agent.post(b"\xff"))[0] == 400
        assert agent.desk.forwarder.waiting == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1/traces", "grpc://127.0.0.1:1"])
async def test_a_dead_collector_costs_a_bounded_queue_and_longer_and_longer_waits(url):
    forwarder = Forwarder(url, 2.0, jitter=lambda: 1.0)
    body = b"x" * (MOST_BYTES // 4)
    for _ in range(6):
        forwarder.offer(body, PROTO, "")
    assert (forwarder.waiting, forwarder.counts["dropped"]) == (4, 2)
    now, tries = 0.0, []
    while now < 100:
        if forwarder.due(now):
            tries.append(now)
            await forwarder.pump(now)
        now += 0.5
    assert tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]
    assert forwarder.waiting == 4
    await forwarder.aclose()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_collector_that_comes_back_gets_what_waited_in_order(protocol):
    async with Receiver() as first:
        url = target(first, protocol)
    forwarder = Forwarder(url, 2.0, jitter=lambda: 0.0)
    bodies = [vllm(VLLM_V1 | {"gen_ai.request.id": f"r{i}"}).body for i in range(3)]
    for body in bodies:
        forwarder.offer(body, PROTO, "")
    await forwarder.pump(0.0)
    assert forwarder.counts == {"retries": 1}
    port = first.grpc.port if protocol == "grpc" else first.http.port
    other = {"otlp_grpc_listen": f"127.0.0.1:{port}"} if protocol == "grpc" else {}
    async with Receiver(**other) as second:
        if protocol == "http":
            await forwarder.aclose()
            forwarder._way._poster.url = second.url  # the port is another; the queue is the same
        await forwarder.pump(10.0)
        assert [body for body, *_ in second.seen.bodies] == bodies
        assert forwarder.counts == {"retries": 1, "sent": 3}
        await forwarder.aclose()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_collector_that_refuses_is_not_asked_again(protocol):
    async with Receiver() as collector:
        forwarder = Forwarder(target(collector, protocol), 2.0)
        forwarder.offer(b"\xff\xff", PROTO, "")
        forwarder.offer(vllm(VLLM_V1).body, PROTO, "")
        await forwarder.pump(0.0)
        assert forwarder.counts == {"rejected": 1, "sent": 1}
        await forwarder.aclose()


async def test_a_collector_that_never_answers_is_given_up_and_tried_again():
    async def silent(stream):
        async with stream:
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, silent)
        for url in (f"http://127.0.0.1:{port}/", f"grpc://127.0.0.1:{port}"):
            forwarder = Forwarder(url, 0.2)
            forwarder.offer(b"", PROTO, "")
            await forwarder.pump(0.0)
            assert (forwarder.counts, forwarder.waiting) == ({"retries": 1}, 1)
            await forwarder.aclose()
        group.cancel_scope.cancel()
    await listener.aclose()
