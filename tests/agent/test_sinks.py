"""What opens reaches those who must hear of it, once, even if they were away: real receivers, a real Alertmanager."""

import asyncio
import contextlib
import json
import socket
import subprocess
from shutil import which

import httpx
import msgspec
import pytest

from gpuwatch.config import Alertmanager, Jsonl, Webhook
from gpuwatch.model import Transition
from gpuwatch.sinks.alertmanager import AlertmanagerSink
from gpuwatch.sinks.delivery import Delivery
from gpuwatch.sinks.jsonl import JsonlSink
from gpuwatch.sinks.webhook import WebhookSink
from tests.agent.builders import START, incident, opened, resolved
from tests.agent.disk import disk_of
from tests.sources.stub_server import HandClock

pytestmark = pytest.mark.anyio


class Receiver:
    """A real HTTP server that keeps what is posted; `status` is its answer."""

    def __init__(self):
        self.status = 200
        self.bodies = []
        self.heads = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length"))
            body = await reader.readexactly(length)
            if self.status == 200:
                self.bodies.append(json.loads(body))
                self.heads.append(head)
            writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()


def kinds(receiver):
    return [(body["kind"], body["incident"]["id"]) for body in receiver.bodies]


async def test_a_webhook_that_was_down_gets_everything_in_order_when_it_is_back():
    """Nothing is lost, nothing comes twice, and waits grow while it is down."""
    async with Receiver() as receiver:
        delivery = Delivery(WebhookSink(Webhook(receiver.url)), jitter=lambda: 1.0)
        receiver.status = 503
        delivery.offer(opened("a"))
        waits = []
        now = START
        for _ in range(4):
            await delivery.pump(now)
            waits.append(delivery.next_try_at - now)
            now = delivery.next_try_at
        assert waits == [1.0, 2.0, 4.0, 8.0]
        assert not delivery.due(now - 0.1)
        delivery.offer(opened("b"))
        receiver.status = 200
        await delivery.pump(now)
        delivery.offer(resolved("a"))
        await delivery.pump(now)
        assert kinds(receiver) == [("opened", "a"), ("opened", "b"), ("resolved", "a")]
        assert delivery.counts == {"retries": 4, "sent": 3}
        assert f"idempotency-key: a/opened/{START + 30:.3f}" in receiver.heads[0].lower()
        await delivery.aclose()


async def test_an_unreachable_receiver_is_a_retry_and_a_refusal_is_not():
    """Refused transitions do not block those behind them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    down = Delivery(WebhookSink(Webhook(nobody)))
    down.offer(opened())
    await down.pump(START)
    assert (down.counts["retries"], down.waiting) == (1, 1)
    async with Receiver() as receiver:
        receiver.status = 422
        refused = Delivery(WebhookSink(Webhook(receiver.url)))
        refused.offer(opened("a"))
        refused.offer(opened("b"))
        await refused.pump(START)
        assert (refused.counts["rejected"], refused.waiting) == (2, 0)
        assert "422" in refused.last_error
        await refused.aclose()
    await down.aclose()


async def test_a_full_queue_drops_the_oldest_and_counts_it():
    """The queue is bounded; the newest words survive."""
    async with Receiver() as receiver:
        delivery = Delivery(WebhookSink(Webhook(receiver.url)), limit=2)
        for name in "abc":
            delivery.offer(opened(name))
        await delivery.pump(START)
        assert kinds(receiver) == [("opened", "b"), ("opened", "c")]
        assert delivery.counts["dropped"] == 1
        await delivery.aclose()


async def test_a_token_is_read_anew_for_each_delivery(tmp_path):
    """A rotated secret needs no restart; a missing one is a retry, not a delivery without it."""
    token = tmp_path / "token"
    async with Receiver() as receiver:
        delivery = Delivery(WebhookSink(Webhook(receiver.url, bearer_file=str(token))))
        delivery.offer(opened())
        await delivery.pump(START)
        assert delivery.counts["retries"] == 1
        token.write_text("s3cret\n")
        await delivery.pump(START + 60)
        assert "authorization: bearer s3cret" in receiver.heads[0].lower()
        await delivery.aclose()


async def test_transitions_are_lines_of_a_file_that_is_rotated(tmp_path):
    """Each line is whole JSON; old files are kept up to the limit."""
    path = tmp_path / "out" / "incidents.jsonl"
    delivery = Delivery(JsonlSink(Jsonl(str(path), max_bytes=3000, keep=2)))
    for i in range(12):
        delivery.offer(opened(str(i)))
    await delivery.pump(START)
    files = sorted(path.parent.iterdir())
    assert [f.name for f in files] == ["incidents.jsonl", "incidents.jsonl.1", "incidents.jsonl.2"]
    assert all(f.stat().st_size <= 3000 for f in files)
    ids = [json.loads(line)["incident"]["id"] for f in reversed(files) for line in f.read_text().splitlines()]
    assert ids == [str(i) for i in range(12 - len(ids), 12)]
    assert msgspec.json.decode(path.read_text().splitlines()[-1], type=Transition).incident == incident("11")


async def test_a_full_disk_holds_lines_back_whole(tmp_path):
    """Half a line is taken back, and the line is written when there is room."""
    path = tmp_path / "incidents.jsonl"
    delivery = Delivery(JsonlSink(Jsonl(str(path))))
    delivery.offer(opened("a"))
    await delivery.pump(START)
    delivery.offer(opened("b"))
    with disk_of(path.stat().st_size + 50):
        await delivery.pump(START)
    assert len(path.read_text().splitlines()) == 1
    assert delivery.counts["retries"] == 1
    await delivery.pump(START + 60)
    assert [json.loads(line)["incident"]["id"] for line in path.read_text().splitlines()] == ["a", "b"]


ALERTMANAGER = which("prometheus-alertmanager")


class RealAlertmanager:
    """A real Alertmanager on a free port; `start` may be called after `stop`, on the same port and data."""

    def __init__(self, folder):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "am.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")

    async def start(self):
        self._process = subprocess.Popen(  # noqa: ASYNC220  (returns at once)
            [
                ALERTMANAGER, f"--config.file={self.folder}/am.yml", f"--storage.path={self.folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=",
            ],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        seen = b""
        while b"Listening on" not in seen:  # its own word that the port is open
            seen = await asyncio.to_thread(self._process.stderr.readline)
            assert seen, "Alertmanager did not start"

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()

    async def alerts(self):
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.url}/api/v2/alerts")
        return {alert["labels"]["severity"]: alert for alert in answer.json()}


@pytest.mark.skipif(ALERTMANAGER is None, reason="needs the Debian package prometheus-alertmanager")
async def test_a_real_alertmanager_has_what_is_open_after_it_was_down(tmp_path):
    """Down when the incident opens, up later, killed and up again: what is open is there, what is over is not."""
    clock = HandClock(float(int(tmp_path.stat().st_mtime)))  # Alertmanager judges `endsAt` by the real time
    start = clock.t
    real = RealAlertmanager(tmp_path)
    sink = AlertmanagerSink(Alertmanager(real.url), {"cluster": "eu-1", "pool": "chat"}, clock.now)
    delivery = Delivery(sink, jitter=lambda: 0.0)
    current = incident(onset_at=start - 60, detected_at=start)
    delivery.offer(Transition("opened", start, current))
    await delivery.pump(clock.t)
    assert (delivery.counts["retries"], delivery.waiting) == (1, 1)
    await real.start()
    try:
        await delivery.pump(clock.t + 60)
        alert = (await real.alerts())["page"]
        assert alert["labels"] == {
            "alertname": "GpuwatchBatchThrashing", "cluster": "eu-1", "engine": "shim", "family": "kv_admission",
            "pool": "chat", "rule": "batch_thrashing", "severity": "page",
        }  # fmt: skip
        assert alert["annotations"]["runbook_url"].endswith("/batch_thrashing.md")
        assert "hold long prompts back" in alert["annotations"]["description"]
        real.stop()
        await real.start()
        delivery.offer(Transition("reminder", clock.t, current))
        await delivery.pump(clock.t + 120)
        assert set(await real.alerts()) == {"page"}
        delivery.offer(Transition("eased", clock.t, msgspec.structs.replace(current, severity="ticket")))
        await delivery.pump(clock.t + 180)
        assert set(await real.alerts()) == {"ticket"}
        over = msgspec.structs.replace(current, severity="ticket", status="resolved", resolved_at=start)
        delivery.offer(Transition("resolved", start, over))
        await delivery.pump(clock.t + 240)
        assert await real.alerts() == {}
    finally:
        real.stop()
        await delivery.aclose()


async def test_two_incidents_under_one_label_set_end_with_the_second():
    """The alert of two ranks of an engine does not end while one of them is open; info never alerts."""
    async with Receiver() as receiver:
        sink = AlertmanagerSink(Alertmanager(receiver.url), {}, lambda: START + 400)
        for transition in (opened("a"), opened("b"), resolved("a"), resolved("b"), opened("c", severity="info")):
            await sink.send(transition)
        ends = [[alert["endsAt"] for alert in body] for body in receiver.bodies]
        future, end = "2025-11-24T16:09:40.000+00:00", "2025-11-24T16:05:00.000+00:00"
        assert ends == [[future], [future], [end]]
        await sink.aclose()
