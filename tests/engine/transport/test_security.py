"""Who is served on the framed wire, and who is believed."""

import asyncio
import ssl
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import uvloop

from engine.access.door import ReaderDoor
from engine.access.tokens import key_of
from engine.errors import AccessRefused, InvalidRequest
from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie, Status
from engine.transport.frames import ErrorCode, Kind, decode_error
from engine.transport.greeting import ClientGreeting
from engine.transport.security import (
    NO_SECURITY,
    Security,
    binding_of,
    new_challenge,
    proofs_match,
)
from tests.engine.transport.bookie_contract import BookieContract, Scenario, append, runs_of
from tests.engine.transport.certificates import Authority
from tests.engine.transport.model_bookie import ModelBookie
from tests.engine.transport.tcp_wiring import TcpHouse, tcp_house

SECRET = b"the cows come home at six"
OTHER = b"the cows come home at ten"


class TestSecretOverTcp(BookieContract):
    """The whole contract, once a secret was proven; the uses of it with TLS come below."""

    new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def security(self) -> Security:
        return Security(secret=SECRET)

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            bookies: list[Bookie] = [ModelBookie(self.first), ModelBookie(self.second)]
            async with asyncio.timeout(60), tcp_house(self.security(), bookies=bookies) as house:
                await scenario(await house.transport(self.security()))

        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(run())


class TestMutualTls(TestSecretOverTcp):
    """Certificates both ways, and a secret on top."""

    @pytest.fixture(autouse=True)
    def _authority(self, tmp_path: Path) -> None:
        self.made = Authority(tmp_path, "herd").security("cow", secret=SECRET)

    def security(self) -> Security:
        return self.made


class TestMutualTlsOverUvloop(TestMutualTls):
    new_loop = staticmethod(uvloop.new_event_loop)


async def refused(house: TcpHouse, security: Security, *, host: str = "127.0.0.1") -> str:
    """What a client is told that may not enter; and that others still may."""
    transport = await house.transport(security, host=host)
    with pytest.raises(AccessRefused) as told:
        await transport.connect("a")
    return str(told.value)


async def served(house: TcpHouse, security: Security) -> bool:
    bookie = await (await house.transport(security)).connect("a")
    first = len(getattr(house.bookies[0], "calls", []))
    reply = await append(bookie, runs_of(7 + first, 0, [[b"moo"]]))
    return reply.status is Status.OK


async def test_a_wrong_secret_is_told_so_and_harms_nobody() -> None:
    async with tcp_house(Security(secret=SECRET)) as house:
        assert "does not know" in await refused(house, Security(secret=OTHER))
        assert "give the secret" in await refused(house, NO_SECURITY)
        assert await served(house, Security(secret=SECRET))


async def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    async with tcp_house(NO_SECURITY) as house:
        assert "did not prove" in await refused(house, Security(secret=SECRET))
        assert await served(house, NO_SECURITY)


async def test_nothing_is_served_before_the_proof() -> None:
    async with tcp_house(Security(secret=SECRET)) as house:
        end = await house.raw()
        end.hello(challenge=new_challenge())
        challenge = await end.frame()
        assert challenge is not None and challenge.kind == Kind.CHALLENGE
        end.send(Kind.CONNECT, msgspec.msgpack.encode(("a",)), request=1)
        answer = await end.frame()
        assert answer is not None and answer.kind == Kind.REFUSED
        assert await end.frame() is None
        await end.close()


async def test_a_recorded_proof_is_worth_nothing_on_another_connection() -> None:
    security = Security(secret=SECRET)
    async with tcp_house(security) as house:
        client = new_challenge()
        first = await house.raw()
        first.hello(challenge=client)
        challenge = await first.frame()
        assert challenge is not None
        (server,) = msgspec.msgpack.decode(challenge.head)
        proof = msgspec.msgpack.encode((security.client_proof(client, server, b""),))
        first.send(Kind.PROOF, proof)
        welcome = await first.frame()
        assert welcome is not None and welcome.kind == Kind.WELCOME
        assert SECRET not in welcome.head + challenge.head + proof
        second = await house.raw()
        second.hello(challenge=client)
        assert await second.frame() is not None
        second.send(Kind.PROOF, proof)
        answer = await second.frame()
        assert answer is not None and answer.kind == Kind.REFUSED
        assert decode_error(answer.head)[0] == ErrorCode.ACCESS_REFUSED
        await first.close()
        await second.close()


def test_a_proof_is_for_one_side_one_pair_of_challenges_and_one_certificate() -> None:
    security, binding = Security(secret=SECRET), binding_of(b"certificate")
    one, two = new_challenge(), new_challenge()
    proof = security.client_proof(one, two, binding)
    assert proofs_match(proof, security.client_proof(one, two, binding))
    assert not proofs_match(proof, security.server_proof(one, two, binding))
    assert not proofs_match(proof, security.client_proof(two, one, binding))
    assert not proofs_match(proof, security.client_proof(one, two, b""))
    assert not proofs_match(proof, Security(secret=OTHER).client_proof(one, two, binding))
    assert not proofs_match(None, proof) and not proofs_match("text", proof)


async def test_certificates_are_asked_for_and_checked_both_ways(tmp_path: Path) -> None:
    herd, wolves = Authority(tmp_path, "herd"), Authority(tmp_path, "wolves")
    async with tcp_house(herd.security("cow")) as house:
        wrong = Security(
            certificate=wolves.sign("wolf").certificate,
            private_key=tmp_path / "wolf.key",
            authorities=herd.path,
        )
        assert "certificate" in await refused(house, wrong)
        assert "certificate" in await refused(house, Security(authorities=herd.path))
        stranger = wolves.security("fox")
        assert "not accepted" in await refused(house, stranger)
        assert await served(house, herd.security("calf"))


async def test_where_users_may_come_the_secret_alone_makes_no_node(tmp_path: Path) -> None:
    """TLS lets users in without a certificate: who is no user is asked for one afterwards."""
    herd = Authority(tmp_path, "herd")
    async with tcp_house(herd.security("cow", secret=SECRET)) as house:
        house.server.door = ReaderDoor(lambda: (key_of(SECRET),), SystemClock())
        told = await refused(house, Security(secret=SECRET, authorities=herd.path))
        assert "wants a certificate" in told
        assert await served(house, herd.security("calf", secret=SECRET))


async def test_a_certificate_of_another_name_is_not_accepted(tmp_path: Path) -> None:
    herd = Authority(tmp_path, "herd")
    elsewhere = herd.sign("bull", hosts=("bull.example",))
    server = Security(certificate=elsewhere.certificate, private_key=elsewhere.private_key)
    async with tcp_house(server) as house:
        assert "not accepted" in await refused(house, Security(authorities=herd.path))
        assert await served(house, Security(authorities=herd.path, verify=False))


async def test_nobody_in_the_middle_passes_proofs_on(tmp_path: Path) -> None:
    """A client that does not verify certificates still finds that its proof is for another."""
    herd, wolves = Authority(tmp_path, "herd"), Authority(tmp_path, "wolves")
    cow, wolf = herd.sign("cow"), wolves.sign("wolf")
    real = Security(secret=SECRET, certificate=cow.certificate, private_key=cow.private_key)
    false = Security(certificate=wolf.certificate, private_key=wolf.private_key)
    async with tcp_house(real) as house:
        client_context = Security(verify=False).client_context()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", house.port, ssl=client_context)
            await asyncio.gather(_pipe(reader, there[1]), _pipe(there[0], writer))

        middle = await asyncio.start_server(between, "127.0.0.1", 0, ssl=false.server_context())
        real_port, house.port = house.port, middle.sockets[0].getsockname()[1]
        transport = await house.transport(Security(secret=SECRET, verify=False))
        house.port = real_port
        with pytest.raises(AccessRefused, match="does not know"):
            await transport.connect("a")
        middle.close()
        assert await served(house, Security(secret=SECRET, verify=False))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


async def test_tls_and_plain_do_not_mix_and_say_so(tmp_path: Path) -> None:
    herd = Authority(tmp_path, "herd")
    async with tcp_house(NO_SECURITY) as house:
        assert "TLS failed" in await refused(house, herd.security("cow"))
        assert await served(house, NO_SECURITY)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: Security(secret=b"short"),
        lambda folder: Security(private_key=folder / "key"),
        lambda folder: Security(authorities=folder / "nothing").client_context(),
        lambda folder: Security(certificate=folder / "nothing").server_context(),
        lambda folder: Security(authorities=folder / "nothing").server_context(),
        lambda folder: Security(certificate=folder / "nothing").binding(),
    ],
)
def test_security_that_cannot_be_used_is_refused_at_once(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest):
        make(tmp_path)


def test_a_secret_is_never_shown() -> None:
    assert "cows" not in repr(Security(secret=SECRET))


@pytest.mark.parametrize("told", [b"-----BEGIN KEY-----cows", "-----BEGIN KEY-----cows", b"cows"])
def test_a_key_in_the_place_of_its_path_is_refused_and_not_repeated(told: object) -> None:
    with pytest.raises(InvalidRequest, match="private_key names a PEM file") as refused:
        Security(certificate=Path("node.pem"), private_key=told)  # type: ignore[arg-type]
    assert "cows" not in str(refused.value)


async def test_old_tls_is_spoken_by_neither_side(tmp_path: Path) -> None:
    security = Authority(tmp_path, "herd").security("cow")
    for context in (security.server_context(), security.client_context()):
        assert context is not None and context.minimum_version >= ssl.TLSVersion.TLSv1_2
    async with tcp_house(security) as house:
        old = replace(security, tls=None).client_context()
        assert old is not None
        # As weak as the library allows, so that it is the server that refuses.
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError):
            await asyncio.open_connection("localhost", house.port, ssl=old)
        assert await served(house, security)


@pytest.mark.parametrize(
    ("security", "listened_to"),
    [
        (Security(user="ann", password="ann's word"), True),
        (Security(token="hbt_1_2"), True),
        (Security(secret=SECRET), False),
        (NO_SECURITY, False),
    ],
    ids=["user", "token", "secret", "nothing"],
)
def test_who_logs_in_gives_away_more_than_who_proves_the_secret(
    security: Security, listened_to: bool
) -> None:
    """What listens takes over a user's connection, or a token; a proof is worth nothing to it."""
    assert ClientGreeting(security).in_the_clear is listened_to
