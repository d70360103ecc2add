"""The transport that dials bookies by their registrations: one script for each of its rules."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from engine.access.shown import ShownToken
from engine.access.tokens import READ, Claims, sign
from engine.errors import AccessRefused, BookieUnavailable, FormatTooNew, MetadataUnavailable
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.memory import MemoryTree
from engine.ports.clock import SystemClock
from engine.transport.contract import Bookie, Status
from engine.transport.dialing import DialingSettings, DialingTransport, framed_dial
from engine.transport.framed_bookie import FramedBookie
from engine.transport.framed_server import FramedServer
from engine.transport.listening import listen_tcp
from engine.transport.security import NO_SECURITY
from tests.engine.access.known_users import KEY
from tests.engine.transport.bookie_contract import BookieContract, Scenario, append, runs_of
from tests.engine.transport.model_bookie import ModelBookie


class ScriptedBookie(ModelBookie):
    """A bookie whose connection can be lost."""

    def __init__(self, bookie_id: str) -> None:
        super().__init__(bookie_id)
        self.gone = False
        self.closed = False

    async def close(self) -> None:
        self.closed = self.gone = True


class House:
    """A store, a transport over it, and dials that go as scripted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = MemoryTree("cluster").session()
        self.bookies = Bookies(self.store)
        self.dialled: list[Registration] = []
        self.answers: dict[str, Callable[[], Awaitable[Bookie]]] = {}
        self.transport = DialingTransport(
            self.bookies,
            dial=self.dial,
            clock=self,
            rng=random.Random(1),
            settings=DialingSettings(redial_first_ms=100, redial_max_ms=1_000),
        )

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    async def dial(self, registration: Registration) -> Bookie:
        self.dialled.append(registration)
        answer = self.answers.get(registration.address)
        if answer is not None:
            return await answer()
        return ScriptedBookie(registration.bookie_id)

    async def register(self, bookie_id: str, address: str, boot: int = 1) -> None:
        await self.bookies.register(Registration(bookie_id, boot, address))
        await settled()

    async def connect(self, bookie_id: str = "a") -> ScriptedBookie:
        bookie = await self.transport.connect(bookie_id)
        assert isinstance(bookie, ScriptedBookie)
        return bookie


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def refusing(error: Exception) -> Callable[[], Awaitable[Bookie]]:
    async def refuse() -> Bookie:
        raise error

    return refuse


async def test_one_connection_serves_all_who_ask_also_at_the_same_time() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    found = await asyncio.gather(*(house.connect() for _ in range(10)))
    assert {id(bookie) for bookie in found} == {id(await house.connect())}
    assert [registration.address for registration in house.dialled] == ["tcp:one:1"]


async def test_a_lost_connection_is_dialled_anew() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    first = await house.connect()
    first.gone = True
    second = await house.connect()
    assert second is not first and len(house.dialled) == 2


async def test_a_bookie_that_moved_is_dialled_where_it_is_registered_now() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    first = await house.connect()
    await house.register("a", "tcp:two:2", boot=2)
    await house.connect()
    await settled()
    second = await house.connect()
    assert [registration.address for registration in house.dialled] == ["tcp:one:1", "tcp:two:2"]
    assert second is not first and first.closed


async def test_a_connection_that_serves_outlives_its_registration() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    first = await house.connect()
    await house.bookies.unregister("a")
    await settled()
    assert await house.connect() is first and not first.closed
    first.gone = True
    with pytest.raises(BookieUnavailable, match="not registered"):
        await house.connect()


async def test_a_bookie_that_cannot_be_reached_rests_longer_each_time() -> None:
    house = House()
    house.answers["tcp:one:1"] = refusing(BookieUnavailable("nobody listens"))
    await house.register("a", "tcp:one:1")
    times: list[float] = []
    while len(times) < 8:
        try:
            await house.connect()
        except BookieUnavailable as error:
            if "a moment ago" not in str(error):
                times.append(house.now_s)
        house.now_s += 0.01
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert 0.05 <= pauses[0] <= 0.12 and pauses[-1] >= 0.5 and max(pauses) <= 1.02


async def test_a_new_registration_ends_the_rest() -> None:
    house = House()
    house.answers["tcp:one:1"] = refusing(BookieUnavailable("nobody listens"))
    await house.register("a", "tcp:one:1")
    with pytest.raises(BookieUnavailable, match="nobody listens"):
        await house.connect()
    await house.register("a", "tcp:two:2", boot=2)
    assert (await house.connect()).bookie_id == "a"


async def test_another_bookie_at_the_address_is_refused_and_its_connection_closed() -> None:
    house = House()
    impostor = ScriptedBookie("b")

    async def lie() -> Bookie:
        return impostor

    house.answers["tcp:one:1"] = lie
    await house.register("a", "tcp:one:1")
    with pytest.raises(BookieUnavailable, match="answers b"):
        await house.connect()
    await settled()
    assert impostor.closed


async def test_a_bookie_of_this_process_is_reached_without_a_dial() -> None:
    house = House()
    local = ModelBookie("a")
    house.transport.add_local(local)
    await house.register("a", "tcp:one:1")
    assert await house.transport.connect("a") is local
    assert not house.dialled
    house.transport.remove_local("a")
    assert await house.connect() is not local


async def test_registrations_are_asked_for_once_and_again_after_a_change() -> None:
    house = House()
    asked = 0
    available = house.bookies.available

    async def counted() -> dict[str, Registration]:
        nonlocal asked
        asked += 1
        return await available()

    house.bookies.available = counted  # type: ignore[method-assign]
    await house.register("a", "tcp:one:1")
    await house.register("b", "tcp:two:2")
    for bookie_id in ("a", "b", "a", "b"):
        await house.connect(bookie_id)
    assert asked == 1
    await house.register("c", "tcp:three:3")
    await house.connect("c")
    assert asked == 2


async def test_while_the_store_cannot_be_asked_the_last_answer_stands() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    await house.register("b", "tcp:two:2")
    first = await house.connect("a")

    async def fail() -> dict[str, Registration]:
        raise MetadataUnavailable("no store")

    await house.register("c", "tcp:three:3")
    house.bookies.available = fail  # type: ignore[method-assign]
    assert await house.connect("a") is first
    assert (await house.connect("b")).bookie_id == "b"
    with pytest.raises(BookieUnavailable, match="cannot be asked"):
        await house.connect("c")


async def test_who_has_a_connection_does_not_wait_for_the_store() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    first = await house.connect()

    async def hang() -> dict[str, Registration]:
        await asyncio.Event().wait()
        raise AssertionError

    house.bookies.available = hang  # type: ignore[method-assign]
    await house.register("b", "tcp:two:2")
    async with asyncio.timeout(1):
        assert await house.connect() is first
    await house.transport.close()


@pytest.mark.parametrize("error", [FormatTooNew("2.0"), AccessRefused("no secret")])
async def test_a_bookie_that_cannot_be_talked_to_is_unavailable(error: Exception) -> None:
    house = House()
    house.answers["tcp:one:1"] = refusing(error)
    await house.register("a", "tcp:one:1")
    with pytest.raises(BookieUnavailable, match=str(error)):
        await house.connect()


async def test_closing_ends_dials_and_connections() -> None:
    house = House()
    await house.register("a", "tcp:one:1")
    await house.register("b", "tcp:two:2")
    first = await house.connect("a")

    async def hang() -> Bookie:
        await asyncio.Event().wait()
        raise AssertionError

    house.answers["tcp:two:2"] = hang
    second = asyncio.ensure_future(house.transport.connect("b"))
    await settled()
    await house.transport.close()
    with pytest.raises(BookieUnavailable, match="closed"):
        await second
    assert first.closed
    with pytest.raises(BookieUnavailable, match="closed"):
        await house.connect("a")


@asynccontextmanager
async def listening(bookies: list[Bookie]) -> AsyncIterator[tuple[DialingTransport, FramedServer]]:
    """A framed server on loopback, its bookies registered, and a transport that dials them."""
    server = FramedServer(cluster_id="cluster")
    listener = await listen_tcp(
        server.accept_counted,
        "127.0.0.1",
        0,
        sockets_max=10,
        handshake_timeout_ms=1_000,
        backlog=10,
    )
    registry = Bookies(MemoryTree("cluster").session())
    for bookie in bookies:
        server.add(bookie)
        await registry.register(Registration(bookie.bookie_id, 1, f"tcp:127.0.0.1:{listener.port}"))
    clock = SystemClock()
    dial = framed_dial(NO_SECURITY, clock)
    transport = DialingTransport(registry, dial=dial, clock=clock, rng=random.Random(1))
    try:
        yield transport, server
    finally:
        await transport.close()
        listener.close()
        await server.close()


class TestDialing(BookieContract):
    """Bookies behind TCP, found by their registrations."""

    def run_with_bookies(self, scenario: Scenario) -> None:
        async def run() -> None:
            bookies: list[Bookie] = [ModelBookie(self.first), ModelBookie(self.second)]
            async with asyncio.timeout(60), listening(bookies) as (transport, _):
                await scenario(transport)

        asyncio.run(run())


async def test_a_bookie_that_stops_behind_a_living_server_is_dialled_again() -> None:
    async with listening([ModelBookie("a")]) as (transport, server):
        first = await transport.connect("a")
        server.remove("a")
        assert (await append(first, runs_of(7, 0, [[b"moo"]]))).status is Status.UNAVAILABLE
        server.add(ModelBookie("a", boot=2))
        second = await transport.connect("a")
        assert isinstance(second, FramedBookie) and second is not first
        assert (await append(second, runs_of(7, 0, [[b"moo"]]))).boot == 2


async def test_a_renewed_token_is_for_what_comes_next_and_ends_nothing_under_way() -> None:
    def token(ends_ms: int) -> str:
        return sign(Claims(READ, "ann", ends_ms), KEY)

    house = House()
    shown = ShownToken(token(1_000), clock=house)
    house.transport = DialingTransport(
        house.bookies, dial=house.dial, clock=house, rng=random.Random(1), token=shown
    )
    await house.register("a", "tcp:a")
    first = await house.connect()
    assert await house.connect() is first
    shown.renew(token(999))
    assert await house.connect() is first, "what ends earlier is no newer one"
    shown.renew(token(2_000))
    second = await house.connect()
    assert second is not first and await house.connect() is second
    made = [first, second]
    await settled()
    assert [each.closed for each in made] == [False, False]
    shown.renew(token(3_000))
    made.append(await house.connect())
    await settled()
    assert [each.closed for each in made] == [True, False, False]
    await house.transport.close()
    assert all(each.closed for each in made)
