"""Secrets, certificates and authorities that are replaced while servers and clients run."""

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pytest

from engine.access.door import ReaderDoor
from engine.access.principal import Principal
from engine.access.secret_files import secret_in, shared_secrets_in
from engine.access.signing import ReadSigner
from engine.access.tokens import READ, Claims, key_of, sign, verify
from engine.errors import AccessRefused, BookieUnavailable
from engine.ports import renewing
from engine.ports.clock import SystemClock
from engine.ports.renewing import Renewed, renew_all
from engine.ports.system_signals import ended_by_signals
from engine.transport.contract import Status
from engine.transport.frames import Kind, decode_greeting
from engine.transport.greeting import ClientGreeting
from engine.transport.security import Security, binding_of
from tests.engine.transport.bookie_contract import append, runs_of
from tests.engine.transport.certificates import Authority
from tests.engine.transport.grpc_wiring import wired
from tests.engine.transport.rotating import NEW, OF_NEW, OF_OLD, OLD, Rotating, authorities_in
from tests.engine.transport.tcp_wiring import RawEnd, tcp_house
from tests.engine.transport.test_grpc_security import refusal, serves
from tests.engine.transport.test_security import refused, served

Break = Callable[[Rotating, Authority], None]


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that other tests of this process left behind are not read again."""
    monkeypatch.setattr(renewing, "_known", WeakSet())


@pytest.fixture
def both(tmp_path: Path) -> tuple[Authority, Authority]:
    return authorities_in(tmp_path)


async def follows_a_file_of_two_secrets(
    files: Rotating, serves: Callable[[Security], Awaitable[bool]]
) -> None:
    """Both secrets of a server's file are accepted, and the older one until it is taken out."""
    assert await serves(OF_OLD) and await serves(OF_NEW)
    files.write_secret(NEW)
    renew_all()
    assert await serves(OF_NEW)


async def test_frames_accept_both_secrets_of_a_file_and_follow_it(tmp_path: Path) -> None:
    files = Rotating(tmp_path, "node", tls=False)
    files.write_secret(OLD, NEW)
    async with tcp_house(files.security()) as house:
        await follows_a_file_of_two_secrets(files, partial(served, house))
        assert "does not know this server's shared secret" in await refused(house, OF_OLD)


async def test_grpc_accepts_both_secrets_of_a_file_and_follows_it(tmp_path: Path) -> None:
    files = Rotating(tmp_path, "node", tls=False)
    files.write_secret(OLD, NEW)
    async with wired(server_security=files.security()) as made:
        await follows_a_file_of_two_secrets(files, partial(serves, made))
        assert "secret" in await refusal(made, OF_OLD)


async def test_a_client_proves_the_first_secret_of_its_file_and_follows_it(tmp_path: Path) -> None:
    files = Rotating(tmp_path, "client", tls=False)
    files.write_secret(OLD, NEW)
    client = files.security()
    async with tcp_house(OF_NEW) as house, wired(server_security=OF_NEW) as made:
        await refused(house, client)
        await refusal(made, client)
        files.write_secret(NEW, OLD)
        renew_all()
        assert await served(house, client) and await serves(made, client)


async def test_tokens_of_either_secret_are_accepted_and_the_first_one_signs(tmp_path: Path) -> None:
    files, clock = Rotating(tmp_path, "node", tls=False), SystemClock()
    security = files.security()
    ends_ms = clock.wall_ms() + 60_000
    old, new = (sign(Claims(READ, "ann", ends_ms), key_of(each.encode())) for each in (OLD, NEW))
    door, signer = ReaderDoor(security.token_keys, clock), ReadSigner(security.token_keys, clock)
    with pytest.raises(AccessRefused):
        door.reader(new)
    files.write_secret(NEW, OLD)
    renew_all()
    assert door.reader(old).principal.name == door.reader(new).principal.name == "ann"
    made = signer.sign(Principal("ben"))
    assert verify(made, (key_of(NEW.encode()),), READ, clock.wall_ms()).user == "ben"
    files.write_secret(NEW)
    renew_all()
    with pytest.raises(AccessRefused):
        door.reader(old)


async def test_frames_follow_certificates_and_authorities_and_keep_their_connections(
    tmp_path: Path, both: tuple[Authority, Authority]
) -> None:
    old, new = both
    server, client = Rotating(tmp_path, "server"), Rotating(tmp_path, "client")
    for side in (server, client):
        side.trust(old)
        side.certify(old)
    knows = client.security()
    async with tcp_house(server.security()) as house:
        kept = await (await house.transport(knows, host="localhost")).connect("a")
        for side in (server, client):
            side.trust(old, new)
        renew_all()
        assert await served(house, knows)
        server.certify(new)
        renew_all()
        assert await served(house, knows)
        client.certify(new)
        renew_all()
        assert await served(house, knows)
        for side in (server, client):
            side.trust(new)
        renew_all()
        assert await served(house, knows)
        stranger = old.security("stranger", secret=OLD.encode())
        await refused(house, stranger)
        reply = await append(kept, runs_of(999, 0, [[b"moo"]]))
        assert reply.status is Status.OK


async def test_grpc_follows_certificates_and_authorities_and_keeps_its_connections(
    tmp_path: Path, both: tuple[Authority, Authority]
) -> None:
    old, new = both
    server, client = Rotating(tmp_path, "server"), Rotating(tmp_path, "client")
    for side in (server, client):
        side.trust(old)
        side.certify(old)
    knows = client.security()
    async with wired(server_security=server.security(), client_security=knows) as made:
        kept = await made.connect()
        for side in (server, client):
            side.trust(old, new)
        renew_all()
        assert await serves(made, knows)
        server.certify(new)
        client.certify(new)
        renew_all()
        assert await serves(made, knows)
        for side in (server, client):
            side.trust(new)
        renew_all()
        assert await serves(made, knows)
        stranger = old.security("stranger", secret=OLD.encode())
        with pytest.raises(BookieUnavailable):
            await serves(made, stranger)
        reply = await append(kept, runs_of(999, 0, [[b"moo"]]))
        assert reply.status is Status.OK


async def test_a_greeting_ends_with_the_certificate_that_it_began_with(
    tmp_path: Path, both: tuple[Authority, Authority]
) -> None:
    """Proofs name the certificate: one that is replaced between handshake and proof breaks none."""
    files = Rotating(tmp_path, "server")
    files.trust(*both)
    files.certify(both[0])
    client = both[0].security("client", secret=OLD.encode())
    async with tcp_house(files.security()) as house:
        tls = client.client_context()
        end = RawEnd(*await asyncio.open_connection("localhost", house.port, ssl=tls))
        seen = end.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        files.certify(both[1])
        renew_all()
        assert house.server.security.binding() != binding_of(seen)
        greeting = ClientGreeting(client)
        end.hello(**greeting.options())
        challenge = await end.frame()
        assert challenge is not None and challenge.kind == Kind.CHALLENGE
        end.send(Kind.PROOF, greeting.answer(challenge.head, binding_of(seen)))
        welcome = await end.frame()
        assert welcome is not None and welcome.kind == Kind.WELCOME
        greeting.check(decode_greeting(welcome.head).options)
        end.writer.transport.abort()


def emptied(files: Rotating, _other: Authority) -> None:
    files.secret.write_text(" \n")


def removed(files: Rotating, _other: Authority) -> None:
    files.secret.unlink()


def shortened(files: Rotating, _other: Authority) -> None:
    files.write_secret(NEW, "moo")


def three(files: Rotating, _other: Authority) -> None:
    files.write_secret(NEW, OLD, NEW)


def opened(files: Rotating, _other: Authority) -> None:
    files.write_secret(NEW)
    files.secret.chmod(0o644)


def opened_key(files: Rotating, _other: Authority) -> None:
    files.write_secret(NEW)
    files.private_key.chmod(0o644)


def another_key(files: Rotating, other: Authority) -> None:
    files.write_secret(NEW)
    files.private_key.write_bytes(other.sign("other").private_key.read_bytes())


def no_authorities(files: Rotating, _other: Authority) -> None:
    files.write_secret(NEW)
    files.authorities.write_text("moo")


@pytest.mark.parametrize(
    ("broken", "cause"),
    [
        (emptied, "secret is empty"),
        (removed, "secret cannot be read"),
        (shortened, "at least 16 bytes"),
        (three, "3 lines"),
        (opened, "chmod 600"),
        (opened_key, "chmod 600"),
        (another_key, "for TLS"),
        (no_authorities, "for TLS"),
    ],
)
async def test_mismatched_files_change_nothing_and_are_logged_in_one_line(
    tmp_path: Path,
    both: tuple[Authority, Authority],
    caplog: pytest.LogCaptureFixture,
    broken: Break,
    cause: str,
) -> None:
    files = Rotating(tmp_path, "node")
    files.trust(*both)
    files.certify(both[0])
    security, same = files.security(), files.security()
    before = both[0].security("client", secret=OLD.encode())
    async with tcp_house(security) as house:
        broken(files, both[1])
        with caplog.at_level(logging.INFO, "engine.ports.renewing"):
            renew_all()
        told = [each.getMessage() for each in caplog.records if each.name.endswith("renewing")]
        assert len(told) == 1 and cause in told[0], told
        assert OLD not in told[0] and NEW not in told[0]
        assert security.now == security and same.now == same
        assert await served(house, before)


def test_an_error_of_one_reader_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers, broken = itertools.count(), [False]

    def read() -> int:
        if broken[0]:
            raise LookupError("the barn is empty")
        return next(numbers)

    some = [Renewed(read) for _ in range(3)]
    whole = Renewed(partial(next, numbers))
    broken[0] = True
    renew_all()
    assert [each.value for each in (*some, whole)] == [0, 1, 2, 4]
    assert [each.getMessage().partition(": ")[2] for each in caplog.records] == [
        "the barn is empty"
    ]


async def test_sighup_reads_again_and_ends_nothing(tmp_path: Path) -> None:
    files = Rotating(tmp_path, "node", tls=False)
    security = files.security()
    ended, read = ended_by_signals(), asyncio.Event()
    watched = Renewed(read.set)
    read.clear()
    files.write_secret(NEW)
    os.kill(os.getpid(), signal.SIGHUP)
    await read.wait()
    assert security.now.secrets == (NEW.encode(),) and watched.value is None
    files.secret.unlink()
    read.clear()
    os.kill(os.getpid(), signal.SIGHUP)
    await read.wait()
    assert security.now.secrets == (NEW.encode(),) and not ended.is_set()


@pytest.mark.parametrize(
    ("content", "secrets"),
    [
        (b"one secret with spaces\n", (b"one secret with spaces", b"")),
        (b"\r\n the first \r\n\n the second \n", (b"the first", b"the second")),
        ("grün\nblau".encode(), ("grün".encode(), b"blau")),
        (b"\x00bytes\nof a machine\xff", (b"\x00bytes\nof a machine\xff", b"")),
    ],
)
def test_a_file_of_text_has_a_secret_a_line(
    tmp_path: Path, content: bytes, secrets: tuple[bytes, bytes]
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(0o600)
    assert shared_secrets_in(file) == secrets


def test_a_pipe_is_read_once_and_says_the_same_when_it_is_asked_again() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"a secret of a pipe\n")
        os.close(writing)
        file = Path(f"/dev/fd/{reading}")
        assert secret_in(file) == secret_in(file) == b"a secret of a pipe"
    finally:
        os.close(reading)


def test_a_side_keeps_its_read_token_and_shows_no_login_as_a_node() -> None:
    source = [Security(secret=OLD.encode(), user="ann", password="ann's word")]
    security = Security.renewed(lambda: source[0])
    node = security.as_node()
    source[0] = Security(secret=NEW.encode(), user="ann", password="ann's new word")
    renew_all()
    assert security.now.password == "ann's new word" and security.now.secret == NEW.encode()
    assert not node.now.logs_in and node.now.secret == NEW.encode()
    assert not security.at_bookies().logs_in and security.at_bookies().secret == NEW.encode()
