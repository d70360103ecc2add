"""Sockets of HTTP: who says nothing, who says a little for ever, and how many one address has."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from herdbook.http_connection import Places
from herdbook.http_listening import Bounds, answer_at, listening_at
from tests.engine.transport.certificates import Authority, Signed

SOON_S = 0.3
END_S = 20.0
SLOW = Bounds(head_s=60.0)
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def at_once() -> None:
    """Nothing is waited for."""


@asynccontextmanager
async def served(
    bounds: Bounds, work: Callable[[], Awaitable[None]] = at_once, signed: Signed | None = None
) -> AsyncIterator[Callable[[bytes], Awaitable[Link]]]:
    """Dials a server that says moo once `work` is done; a dialler says something at once."""

    async def app(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await work()
        headers = [(b"content-length", b"3")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"moo"})

    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listening_at("127.0.0.1:0"))
        certificate = None if signed is None else signed.certificate
        key = None if signed is None else signed.private_key
        await answer_at(stack, app, listening, certificate, key, bounds)
        host, port = listening.getsockname()

        async def dial(says: bytes) -> Link:
            reader, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
            writer.write(says)
            return reader, writer

        yield dial


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side hangs up, which has to be soon."""
    try:
        async with asyncio.timeout(END_S):
            return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("says", [b"", b"GET", HEAD, HEAD + b"X-Cow: "])
async def test_who_does_not_say_what_they_want_is_hung_up_on(says: bytes) -> None:
    async with served(Bounds(head_s=SOON_S)) as dial:
        reader, _ = await dial(says)
        assert await heard(reader) == b""


async def test_who_says_a_little_for_ever_is_hung_up_on_after_an_answer_too() -> None:
    async with served(Bounds(head_s=SOON_S)) as dial:
        reader, writer = await dial(HEAD + b"\r\n")
        assert (await reader.readuntil(b"moo")).startswith(b"HTTP/1.1 200")
        writer.write(HEAD)
        # An end comes, however often something is said.
        ended = asyncio.ensure_future(heard(reader))
        while not ended.done():
            writer.write(b"X-Cow: moo\r\n")
            await asyncio.wait({ended}, timeout=SOON_S / 10)
        assert ended.result() == b""


async def test_who_has_asked_may_wait_for_the_answer() -> None:
    hung_up = asyncio.Event()

    async def work() -> None:
        await hung_up.wait()

    async with served(Bounds(head_s=SOON_S), work) as dial:
        waiting, _ = await dial(HEAD + b"Connection: close\r\n\r\n")
        silent, _ = await dial(b"")
        assert await heard(silent) == b""
        hung_up.set()
        assert (await heard(waiting)).endswith(b"moo")


async def test_who_does_not_finish_a_handshake_is_hung_up_on(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    async with served(Bounds(head_s=SOON_S), signed=authority.sign("server")) as dial:
        reader, writer = await dial(b"")
        assert await heard(reader) == b""
        trusting = ssl.create_default_context(cafile=authority.path)
        host, port = writer.get_extra_info("peername")
        reader, writer = await asyncio.open_connection(host, port, ssl=trusting)
        writer.write(HEAD + b"Connection: close\r\n\r\n")
        assert (await heard(reader)).endswith(b"moo")
        writer.close()


async def test_one_address_has_no_more_than_its_share_of_connections() -> None:
    async with served(Bounds(head_s=SLOW.head_s, of_address_max=2)) as dial:
        first, second = await dial(HEAD), await dial(HEAD)
        third, _ = await dial(b"")
        assert await heard(third) == b""
        for reader, writer in (first, second):
            writer.write(b"Connection: close\r\n\r\n")
            assert (await heard(reader)).endswith(b"moo")
        again, writer = await dial(HEAD + b"Connection: close\r\n\r\n")
        assert (await heard(again)).endswith(b"moo")


async def test_all_together_have_no_more_connections_than_there_may_be() -> None:
    async with served(Bounds(connections_max=1, head_s=SLOW.head_s)) as dial:
        reader, writer = await dial(HEAD)
        refused, _ = await dial(HEAD)
        assert await heard(refused) == b""
        writer.write(b"Connection: close\r\n\r\n")
        assert (await heard(reader)).endswith(b"moo")


def test_the_share_of_an_address_is_its_own_and_comes_back() -> None:
    places = Places(1)
    assert places.take("10.0.0.1") and places.take("10.0.0.2")
    assert not places.take("10.0.0.1")
    places.give_back("10.0.0.1")
    assert places.take("10.0.0.1") and not places.take("10.0.0.2")


def test_connections_leave_half_of_the_files_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 1_024))
    assert Bounds.of_process() == Bounds(512, 128)
