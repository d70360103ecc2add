"""Sockets of HTTP: who says nothing, who says a little for ever, and how many one address has."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from engine.errors import InvalidRequest
from engine.ports.renewing import renew_all
from herdbook.http_listening import Bounds, answer_at, listening_at
from herdbook.http_proxies import Proxies
from tests.engine.transport.certificates import Authority, Signed
from tests.engine.transport.rotating import authorities_in

SOON_S = 0.3
END_S = 20.0
SLOW = Bounds(head_s=60.0)
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
CLOSING = HEAD + b"Connection: close\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Dial(Protocol):
    """Connects from an address of this machine and says something."""

    def __call__(
        self, says: bytes, whence: str = ..., context: ssl.SSLContext | None = ...
    ) -> Awaitable[Link]: ...


async def at_once() -> None:
    """Nothing is waited for."""


@asynccontextmanager
async def served(
    bounds: Bounds,
    work: Callable[[], Awaitable[None]] = at_once,
    signed: Signed | None = None,
    proxies: Sequence[str] = (),
    reads: bool = False,
    says: bytes = b"moo",
    replied: asyncio.Event | None = None,
) -> AsyncIterator[Dial]:
    """Dials a server that says moo and to whom, once `work` is done; who dials speaks at once.

    `reads`: it reads bodies before. `replied` is set when it has no more to say.
    """

    async def app(
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[..., Awaitable[None]],
    ) -> None:
        while reads and (await receive()).get("more_body"):
            pass
        await work()
        length = str(len(says)).encode()
        headers = [(b"x-client", scope["client"][0].encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": says})
        if replied is not None:
            replied.set()

    async with AsyncExitStack() as stack:
        listening = stack.enter_context(listening_at("127.0.0.1:0"))
        certificate = None if signed is None else signed.certificate
        key = None if signed is None else signed.private_key
        await answer_at(stack, app, listening, certificate, key, bounds, proxies)
        host, port = listening.getsockname()

        async def dial(
            says: bytes, whence: str = "127.0.0.1", context: ssl.SSLContext | None = None
        ) -> Link:
            reader, writer = await asyncio.open_connection(
                host, port, local_addr=(whence, 0), ssl=context
            )
            stack.callback(writer.close)
            writer.write(says)
            return reader, writer

        yield dial


def trusting(authority: Authority) -> ssl.SSLContext:
    """A client that trusts only this one."""
    return ssl.create_default_context(cafile=authority.path)


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
    bounds = Bounds(head_s=SLOW.head_s, handshake_s=SOON_S)
    async with served(bounds, signed=authority.sign("server")) as dial:
        reader, _ = await dial(b"")
        assert await heard(reader) == b""
        reader, _ = await dial(CLOSING, context=trusting(authority))
        assert (await heard(reader)).endswith(b"moo")


async def test_new_connections_see_a_replaced_certificate(tmp_path: Path) -> None:
    old, new = authorities_in(tmp_path)
    signed, other = old.sign("server"), new.sign("server")
    async with served(SLOW, signed=signed) as dial:
        before, kept = await dial(HEAD, context=trusting(old))
        other.certificate.replace(signed.certificate)
        other.private_key.replace(signed.private_key)
        renew_all()
        reader, _ = await dial(CLOSING, context=trusting(new))
        assert (await heard(reader)).endswith(b"moo")
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial(CLOSING, context=trusting(old))
        kept.write(b"Connection: close\r\n\r\n")
        assert (await heard(before)).endswith(b"moo")


async def test_connections_that_begin_no_handshake_count_in_the_share_of_their_address(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path, "ca")
    bounds = Bounds(connections_max=8, of_address_max=2, head_s=SLOW.head_s, handshake_s=60.0)
    async with served(bounds, signed=authority.sign("server")) as dial:
        silent = [await dial(b"") for _ in range(20)]
        # All but the first two are closed, and take no place from others.
        for reader, _ in silent[2:]:
            assert await heard(reader) == b""
        reader, _ = await dial(CLOSING, "127.0.0.2", trusting(authority))
        assert (await heard(reader)).endswith(b"moo")
        for reader, writer in silent[:2]:
            assert not reader.at_eof()
            # An invalid handshake fails, and its place is released.
            writer.write(HEAD + b"\r\n")
            await heard(reader)
        reader, _ = await dial(CLOSING, context=trusting(authority))
        assert (await heard(reader)).endswith(b"moo")


@pytest.mark.parametrize(
    ("proxies", "told", "client"),
    [
        ((), b"X-Forwarded-For: 192.0.2.7\r\n", b"127.0.0.1"),
        (("10.0.0.0/8",), b"X-Forwarded-For: 192.0.2.7\r\n", b"127.0.0.1"),
        (("127.0.0.1",), b"", b"127.0.0.1"),
        (("127.0.0.1",), b"X-Forwarded-For: 192.0.2.7\r\n", b"192.0.2.7"),
        (("127.0.0.1",), b"X-Forwarded-For: 127.0.0.1, 192.0.2.7:50312\r\n", b"192.0.2.7"),
        (("127.0.0.1",), b"X-Forwarded-For: 127.0.0.1, moo\r\n", b"unknown"),
        (
            ("127.0.0.0/8", "10.0.0.0/8"),
            b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: [2001:db8::7]:1, 10.0.0.3\r\n",
            b"2001:db8::7",
        ),
    ],
)
async def test_only_a_proxy_of_the_settings_names_the_client(
    proxies: Sequence[str], told: bytes, client: bytes
) -> None:
    async with served(SLOW, proxies=proxies) as dial:
        reader, _ = await dial(HEAD + told + b"Connection: close\r\n\r\n")
        assert b"x-client: " + client + b"\r\n" in await heard(reader)


async def test_a_proxy_of_the_settings_has_as_many_connections_as_there_may_be() -> None:
    bounds = Bounds(connections_max=8, of_address_max=1, head_s=SLOW.head_s)
    async with served(bounds, proxies=["127.0.0.1"]) as dial:
        for reader, writer in [await dial(HEAD) for _ in range(4)]:
            writer.write(b"Connection: close\r\n\r\n")
            assert (await heard(reader)).endswith(b"moo")


def test_an_invalid_address_of_a_proxy_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"10\.0\.0\.0/8"):
        Proxies(["10.0.0.1/8"])


async def test_one_address_has_no_more_than_its_share_of_connections() -> None:
    async with served(Bounds(head_s=SLOW.head_s, of_address_max=2)) as dial:
        first, second = await dial(HEAD), await dial(HEAD)
        third, _ = await dial(b"")
        assert await heard(third) == b""
        other, _ = await dial(CLOSING, "127.0.0.2")
        assert (await heard(other)).endswith(b"moo")
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


def test_connections_leave_half_of_the_files_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1_024, 1_024))
    assert Bounds.of_process() == Bounds(512, 128)


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = 20_000


@pytest.mark.parametrize("reads", [False, True])
async def test_a_body_in_pieces_of_one_byte_lets_others_have_their_turns(reads: bool) -> None:
    turns = [0]

    def turn() -> None:
        turns[0] += 1
        asyncio.get_running_loop().call_soon(turn)

    async with served(SLOW, reads=reads) as dial:
        reader, writer = await dial(CHUNKED)
        turn()
        writer.write(b"1\r\nx\r\n" * PIECES + b"0\r\n\r\n" + CLOSING)
        # The next request of the connection is answered when the body is over.
        told = await heard(reader)
        assert told.count(b"HTTP/1.1 200") == 2
        assert turns[0] > PIECES / 64


async def test_a_client_that_sends_a_body_for_ever_is_disconnected_after_the_reply() -> None:
    async with served(Bounds(head_s=SOON_S)) as dial:
        reader, writer = await dial(CHUNKED)
        assert (await reader.readuntil(b"moo")).startswith(b"HTTP/1.1 200")
        ended = asyncio.ensure_future(heard(reader))
        while not ended.done():
            writer.write(b"1\r\nx\r\n")
            await asyncio.wait({ended}, timeout=SOON_S / 10)
        assert ended.result() == b""


async def test_a_request_with_two_body_lengths_is_refused() -> None:
    async with served(SLOW) as dial:
        both = CHUNKED.replace(b"Transfer", b"Content-Length: 4\r\nTransfer")
        reader, _ = await dial(both + b"0\r\n\r\n" + CLOSING)
        told = await heard(reader)
        assert told.startswith(b"HTTP/1.1 400") and b"moo" not in told


async def test_who_takes_nothing_of_a_reply_is_hung_up_on() -> None:
    said, replied = b"moo" * 10_000_000, asyncio.Event()
    async with served(Bounds(idle_s=SOON_S), says=said, replied=replied) as dial:
        reader, _ = await dial(CLOSING)
        async with asyncio.timeout(END_S):
            await replied.wait()
        assert len(await heard(reader)) < len(said)


async def test_a_long_reply_comes_whole() -> None:
    said = bytes(range(256)) * 4_000
    async with served(SLOW, says=said) as dial:
        reader, _ = await dial(CLOSING)
        assert (await heard(reader)).endswith(b"\r\n\r\n" + said)
