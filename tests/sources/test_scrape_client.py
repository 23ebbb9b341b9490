"""The scrape client against a real server that misbehaves."""

import asyncio
import gzip

import pytest

from gpuwatch.wire.http_get import ScrapeClient, ScrapeError
from tests.sources.stub_server import Reply, StubServer


def fetch(reply, *, times=1, timeout_s=5.0, max_body_bytes=10_000):
    """Bodies of `times` GETs over one client, and the number of connections it made."""

    async def main():
        async with StubServer(lambda _: reply) as server:
            client = ScrapeClient(server.url, timeout_s, max_body_bytes)
            try:
                return [(await client.get("/metrics")).body for _ in range(times)], server.connections
            finally:
                await client.aclose()

    return asyncio.run(main())


def refusal(reply, **settings):
    with pytest.raises(ScrapeError) as caught:
        fetch(reply, **settings)
    return caught.value.reason


@pytest.mark.parametrize("reply", [Reply(b"a 1\n" * 99), Reply(b"a 1\n" * 99, chunks=7)], ids=["length", "chunked"])
def test_a_connection_is_kept_over_many_bodies(reply):
    bodies, connections = fetch(reply, times=5)
    assert bodies == [b"a 1\n" * 99] * 5
    assert connections == 1


def test_a_body_to_the_end_of_the_connection_is_read_and_the_next_one_opens_another():
    bodies, connections = fetch(Reply(b"a 1\n", framed=False), times=3)
    assert bodies == [b"a 1\n"] * 3
    assert connections == 3


def test_an_empty_body_is_an_answer():
    assert fetch(Reply(b"")) == ([b""], 1)


def test_a_body_that_is_compressed_unasked_is_inflated_within_the_limit():
    plain = b"a 1\n" * 1000
    assert fetch(Reply(gzip.compress(plain), headers={"Content-Encoding": "gzip"}))[0] == [plain]
    bomb = gzip.compress(b"0" * 1_000_000)
    assert refusal(Reply(bomb, headers={"Content-Encoding": "gzip"})) == "too_large"
    assert refusal(Reply(gzip.compress(plain)[:-9], headers={"Content-Encoding": "gzip"})) == "half_body"
    assert refusal(Reply(plain, headers={"Content-Encoding": "br"})) == "protocol"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(b"a 1\n" * 100, send_bytes=200), "half_body"),
        (Reply(b"a 1\n" * 100, chunks=4, send_bytes=150), "half_body"),
        (Reply(b"a 1\n", send_bytes=10), "half_body"),
        (Reply(b"a 1\n", send_bytes=0), "closed"),
        (Reply(b"x" * 20_000), "too_large"),
        (Reply(b"x" * 20_000, chunks=4), "too_large"),
        (Reply(b"x" * 20_000, framed=False), "too_large"),
        (Reply(raw=b"SSH-2.0-OpenSSH\r\n\r\n"), "protocol"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), "protocol"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "protocol"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 30_000), "protocol"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_broken_answer_has_a_reason(reply, reason):
    assert refusal(reply) == reason


def test_fifty_megabytes_are_refused_by_their_announcement():
    assert refusal(Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")) == "too_large"


def test_a_server_that_hangs_runs_into_the_time_limit_and_the_next_get_works():
    async def main():
        replies = [Reply(b"", wait=asyncio.Event()), Reply(b"a 1\n")]
        async with StubServer(lambda _: replies.pop(0)) as server:
            client = ScrapeClient(server.url, timeout_s=0.05)
            with pytest.raises(ScrapeError) as caught:
                await client.get("/metrics")
            assert caught.value.reason == "timeout"
            assert (await client.get("/metrics", timeout_s=5.0)).body == b"a 1\n"
            await client.aclose()

    asyncio.run(main())


def test_nobody_at_the_port_is_refused_and_a_restarted_server_is_found_at_once():
    async def main():
        async with StubServer(lambda _: Reply(b"a 1\n")) as first:
            client = ScrapeClient(first.url)
            await client.get("/metrics")
        with pytest.raises(ScrapeError) as caught:
            await client.get("/metrics")
        assert caught.value.reason == "refused"
        async with StubServer(lambda _: Reply(b"a 2\n"), first.port):
            assert (await client.get("/metrics")).body == b"a 2\n"
        await client.aclose()

    asyncio.run(main())


def test_a_kept_connection_that_the_server_dropped_is_opened_again_unseen():
    async def main():
        async with StubServer(lambda _: Reply(b"a 1\n")) as first:
            client = ScrapeClient(first.url)
            await client.get("/metrics")
        async with StubServer(lambda _: Reply(b"a 2\n"), first.port):
            assert (await client.get("/metrics")).body == b"a 2\n"
        await client.aclose()

    asyncio.run(main())


def test_a_target_cannot_smuggle_a_second_request():
    async def main():
        async with StubServer(lambda _: Reply(b"a 1\n")) as server:
            client = ScrapeClient(server.url)
            for target in ("/a\r\nX: 1", "/a b", "metrics", "/\x7f"):
                with pytest.raises(ScrapeError):
                    await client.get(target)
            assert server.targets == []

    asyncio.run(main())


def test_only_http_addresses_are_taken():
    for origin in ("ftp://x", "localhost:8000", "http://"):
        with pytest.raises(ValueError, match="not an http"):
            ScrapeClient(origin)


def test_credentials_of_the_address_are_not_sent_as_host():
    async def main():
        async with StubServer(lambda _: Reply(b"a 1\n")) as server:
            client = ScrapeClient(server.url.replace("http://", "http://user:secret@"))
            await client.get("/metrics")
            await client.aclose()
            assert "secret" not in server.heads[0]

    asyncio.run(main())
