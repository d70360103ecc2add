"""The time for expiry where a machine's clock, or the server's, is set an hour forward or back."""

import asyncio
import logging
import random
from typing import Any, Final

import pytest

from engine.errors import MetadataUnavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ledger.client import LedgerClient
from engine.ledger.cluster_time import ASK_S, ClusterTime
from engine.log import START, LogSettings, ReplicatedLog
from engine.metadata.contract import MetadataStore
from engine.metadata.memory import MemoryTree
from engine.metadata.passed_on import PassedOn
from engine.transport.inprocess import InProcessTransport
from herd.checkpoint.record import CheckpointList
from tests.broker.service.clocks import HandClock
from tests.herd.checkpoint.test_pins import record

HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_700_000_000_000
MINUTE_MS: Final = 60_000


class Server:
    """The machine of the metadata store: its clock, and whether it tells it."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW_MS)
        self.asked = 0
        self.silent = self.unknown = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.tree = MemoryTree("c")

    def session(self) -> MetadataStore:
        session: Any = self.tree.session()
        session.server_ms = self._server_ms
        found: MetadataStore = session
        return found

    async def _server_ms(self) -> int | None:
        self.asked += 1
        await self.answering.wait()
        if self.unknown:
            return None
        if self.silent:
            raise MetadataUnavailable("silent")
        return self.clock.wall_ms()


def client_of(server: Server, clock: HandClock) -> LedgerClient:
    return LedgerClient(
        store=server.session(),
        transport=InProcessTransport(),
        clock=clock,
        rng=random.Random(1),
    )


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
@pytest.mark.parametrize("who", ["machine", "server"])
async def test_a_clock_that_jumps_ends_nothing_early_and_is_told(
    jump_ms: int, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, clock = Server(), HandClock(NOW_MS)
    time = ClusterTime(clock, server.session())
    assert await time.earliest_ms() == await time.latest_ms() == NOW_MS
    jumping = clock if who == "machine" else server.clock
    jumping.wall += jump_ms
    for each in (clock, server.clock):
        each.pass_s(ASK_S if who == "server" else 1)
    good_ms = (server.clock if who == "machine" else clock).wall
    with caplog.at_level(logging.WARNING):
        times = await time.earliest_ms(), await time.latest_ms()
    assert times == (min(good_ms, jumping.wall), max(good_ms, jumping.wall))
    [told] = caplog.messages
    ahead_s = jump_ms // 1_000 if who == "machine" else -jump_ms // 1_000
    assert f"differ by {ahead_s} s" in told
    jumping.wall -= jump_ms
    for each in (clock, server.clock):
        each.pass_s(ASK_S)
    assert await time.earliest_ms() == await time.latest_ms() == clock.wall


async def test_a_small_difference_is_allowed_for_elsewhere_and_the_server_is_seldom_asked() -> None:
    server, clock = Server(), HandClock(NOW_MS + CLOCK_DIFFERENCE_MS)
    time = ClusterTime(clock, server.session())
    for _ in range(5):
        assert await time.earliest_ms() == await time.latest_ms() == clock.wall
    assert server.asked == 1
    server.silent = True
    for _ in range(3):
        clock.pass_s(ASK_S)
        server.clock.pass_s(ASK_S)
        clock.wall += HOUR_MS
        assert await time.earliest_ms() == server.clock.wall, "the last answer goes on"


async def test_nobody_decides_before_the_first_answer_has_come() -> None:
    server, clock = Server(), HandClock(NOW_MS + HOUR_MS)
    time = ClusterTime(clock, server.session())
    server.silent = True
    assert await time.earliest_ms() == clock.wall, "there is nothing else to go by"
    server.silent = False
    for each in (clock, server.clock):
        each.pass_s(1)
    answers = await asyncio.gather(*(time.earliest_ms() for _ in range(3)))
    assert answers == [NOW_MS + 1_000] * 3 and server.asked == 2 and time.ahead_ms() == HOUR_MS


async def test_clients_of_a_server_share_its_requests_to_the_store() -> None:
    server, clock = Server(), HandClock(NOW_MS + HOUR_MS)
    shared = ClusterTime(clock, server.session())
    for _ in range(3):
        behind = HandClock(NOW_MS - HOUR_MS)
        time = ClusterTime(behind, PassedOn(server.session(), shared))
        assert await time.latest_ms() == NOW_MS, (
            "by the store's clock, not by the client's or the node's"
        )
        assert await time.earliest_ms() == behind.wall_ms()
    assert server.asked == 1


async def test_a_silent_store_is_asked_once_a_second_however_many_clients_wait() -> None:
    server, clock = Server(), HandClock(NOW_MS)
    server.silent = True
    shared = ClusterTime(clock, server.session())
    sessions = [PassedOn(server.session(), shared) for _ in range(9)]
    for asked in (1, 2):
        calls = (session.server_ms() for session in sessions)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(answer) for answer in answers} == {MetadataUnavailable}
        assert server.asked == asked
        clock.pass_s(1)


async def test_a_client_that_goes_in_the_middle_takes_the_time_from_nobody() -> None:
    server, clock = Server(), HandClock(NOW_MS)
    server.answering.clear()
    time = ClusterTime(clock, server.session())
    first = asyncio.create_task(time.server_ms())
    await asyncio.sleep(0)
    second = asyncio.create_task(time.server_ms())
    await asyncio.sleep(0)
    first.cancel()
    server.answering.set()
    await asyncio.gather(first, second, return_exceptions=True)
    for each in (clock, server.clock):
        each.pass_s(1)
    assert await time.server_ms() == NOW_MS + 1_000


async def test_a_server_that_does_not_know_the_stores_time_replaces_no_known_time() -> None:
    server, clock = Server(), HandClock(NOW_MS + HOUR_MS)
    session = server.session()
    time = ClusterTime(clock, session)
    assert await time.earliest_ms() == NOW_MS
    server.unknown = True
    for each in (clock, server.clock):
        each.pass_s(ASK_S)
    assert await time.earliest_ms() == server.clock.wall_ms() and server.asked == 2


async def test_a_session_without_a_clock_knows_no_time() -> None:
    assert await PassedOn(MemoryTree("c").session()).server_ms() is None


async def test_without_another_machine_the_own_clock_counts() -> None:
    clock = HandClock(NOW_MS)
    time = ClusterTime(clock, MemoryTree("c").session())
    clock.wall += HOUR_MS
    assert await time.earliest_ms() == await time.latest_ms() == NOW_MS + HOUR_MS


@pytest.mark.parametrize(("leader_ms", "reader_ms"), [(HOUR_MS, 0), (0, -HOUR_MS)])
async def test_a_pinned_checkpoint_stays_though_two_machines_are_an_hour_apart(
    leader_ms: int, reader_ms: int
) -> None:
    server = Server()
    leader = client_of(server, HandClock(NOW_MS + leader_ms))
    reader = client_of(server, HandClock(NOW_MS + reader_ms))
    mine = CheckpointList(leader.store, "default", leader.time)
    await mine.claim(1)
    await mine.add(record(1))
    await CheckpointList(reader.store, "default", reader.time).pin("spark", 1, MINUTE_MS)
    for number in (2, 3, 4):
        held = await mine.add(record(number))
    assert held.kept[0].number == 1 and [pin.name for pin in held.pins] == ["spark"]


@pytest.mark.parametrize(("leader_ms", "reader_ms"), [(HOUR_MS, 0), (0, -HOUR_MS)])
async def test_a_pin_of_a_log_stays_though_two_machines_are_an_hour_apart(
    leader_ms: int, reader_ms: int
) -> None:
    server = Server()
    leader = client_of(server, HandClock(NOW_MS + leader_ms))
    reader = client_of(server, HandClock(NOW_MS + reader_ms))
    settings = LogSettings(retention_ms=0)
    theirs = ReplicatedLog(reader, "farm", settings=settings)
    await theirs.pin("backup", START, MINUTE_MS)
    mine = ReplicatedLog(leader, "farm", settings=settings)
    await mine.truncate(START)
    await mine.pin("other", START, MINUTE_MS)
    assert {pin.name for pin in (await mine.list()).pins} == {"backup", "other"}
