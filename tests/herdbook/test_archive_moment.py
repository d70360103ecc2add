"""All logs of a backup end at one moment: no effect is in it without its cause."""

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from broker.commands import Spec
from broker.reading import TaskFilter
from broker.service import Broker
from broker.task import Mode, Status
from engine.errors import EngineError, Unavailable
from engine.ledger.client import LedgerClient
from engine.log import START, LogWriter, ReplicatedLog
from engine.log.holding import HOLD, StoreHold
from engine.log.log_list import LOGS, LogList, decode_list
from engine.metadata.contract import Page
from engine.metadata.ledgers import LEDGERS
from engine.ports.system_workers import ThreadWorkers
from engine.repair.outlook import Workshop
from herdbook.archive import BackupFolder, back_up, restore_folder
from herdbook.archive import cut as cutting
from herdbook.archive.cut import Cut, opened, take_cut
from herdbook.book import AsyncBook, open_async
from tests.broker.service.yard import FakeWorker
from tests.engine.ledger.scripted import Cluster, LoopClock, ScriptedBookie, turns
from tests.herdbook.test_archive_beside import workshop_of
from tests.simulation.virtual import elapse, virtually

LOGS_OF_TWO = ("herd-of-ann", "herd-of-bob")


class Late:
    """Makes messages late, each by another time; those of one bookie's appends stay in order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._answered_s: dict[str, float] = {}

    def bookie(self, bookie: ScriptedBookie) -> None:
        """Make what a bookie is asked and answers late."""
        append = bookie.append

        def appended(runs: Any, reply: Callable[[Any], None], **named: Any) -> None:
            def late(answer: Any) -> None:
                at_s = self._loop.time() + self.rng.random() * 0.004
                at_s = max(at_s, self._answered_s.get(bookie.bookie_id, 0.0))
                self._answered_s[bookie.bookie_id] = at_s
                self._loop.call_at(at_s, reply, answer)

            append(runs, late, **named)

        bookie.append = appended  # type: ignore[method-assign]
        for name in ("read", "fence", "wait_lac"):
            setattr(bookie, name, self.call(getattr(bookie, name)))

    def store(self, store: Any) -> Any:
        """Make a session's answers and notices late."""
        for name in ("get", "create", "set", "delete", "children", "sync"):
            setattr(store, name, self.call(getattr(store, name)))
        watch = store.watch

        def watched(key: str, changed: Callable[[], None]) -> Callable[[], None]:
            def late() -> None:
                self._loop.call_later(self.rng.choice((0.001, 0.05)), changed)

            end: Callable[[], None] = watch(key, late)
            return end

        store.watch = watched
        return store

    def call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Make one call late, on its way there and back."""

        async def late(*given: Any, **named: Any) -> Any:
            await elapse(self.rng.choice((0.0005, 0.005)))
            found = await call(*given, **named)
            await elapse(self.rng.choice((0.0005, 0.005)))
            return found

        return late


class Herds:
    """Two logs, and writers that move rows between them, one acknowledged step after another."""

    def __init__(self, client: LedgerClient, rng: random.Random) -> None:
        self.acknowledged: list[tuple[str, bytes]] = []
        self._rng = rng
        self._client = client
        self._logs = {name: ReplicatedLog(client, name) for name in LOGS_OF_TWO}
        self._leaders: dict[str, LogWriter] = {}

    async def begin(self) -> None:
        """Lead both."""
        for name, log in self._logs.items():
            self._leaders[name] = await log.lead()

    async def append(self, name: str, body: bytes) -> None:
        """Append until the current leader acknowledges it."""
        while True:
            try:
                await self._leaders[name].append(body)
            except EngineError:
                await elapse(0.01)
            else:
                self.acknowledged.append((name, body))
                return

    async def move(self, who: int) -> None:
        """Take one step after the other, in one log and the other by turns."""
        step = 0
        while True:
            await self.append(LOGS_OF_TWO[step % 2], b"%d %d" % (who, step))
            step += 1

    async def retell(self, name: str, other: str) -> None:
        """Tell in another log what a follower of this one shows, before anybody is answered."""
        async with aclosing(self._logs[name].tail(START)) as batches:
            async for batch in batches:
                for body in batch.bodies:
                    if not body.startswith(b"saw "):
                        await self.append(other, b"saw " + body)

    async def take_over(self) -> None:
        """Take over from the current leader from time to time."""
        while True:
            await elapse(self._rng.random())
            name = self._rng.choice(LOGS_OF_TWO)
            try:
                self._leaders[name] = await self._logs[name].lead()
            except EngineError:
                continue


async def entries_of(workshop: Workshop, cut: Cut) -> dict[str, list[bytes]]:
    """What a cut holds, by log."""
    found: dict[str, list[bytes]] = {}
    for name in LOGS_OF_TWO:
        listed = decode_list(cut.keys[f"{LOGS}/{name}/list"])
        found[name] = []
        for each in listed.listed:
            last = cut.ends[each.ledger] if each.last_entry is None else each.last_entry
            async with await opened(workshop, each.ledger) as reader:
                entries = reader.read_unconfirmed(0, last, acknowledged=True)
                found[name] += [entry.body async for entry in entries]
    return found


def check(found: dict[str, list[bytes]], before: list[tuple[str, bytes]]) -> None:
    """What was acknowledged is there, and nothing without what came before it."""
    bodies = {body for each in found.values() for body in each}
    for name, body in before:
        assert body in found[name], (name, body)
    for body in bodies:
        if body.startswith(b"saw "):
            assert body.removeprefix(b"saw ") in bodies, body
        else:
            who, step = map(int, body.split())
            assert step == 0 or b"%d %d" % (who, step - 1) in bodies, body


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_of_two_logs_has_no_step_without_the_ones_before_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script() -> None:
        late = Late(seed)

        async def apart(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
            # One log is looked at later than the other, as where there are many of them.
            await elapse(late.rng.choice((0.0, 0.02)))
            return await take_log(workshop, name, keys)

        take_log = cutting._take_log
        monkeypatch.setattr(cutting, "_take_log", apart)
        bookies = await Cluster.of(3)
        bookies.client_clock = LoopClock()
        for bookie in bookies.bookies:
            late.bookie(bookie)
        herds = Herds(bookies.client(store=late.store(bookies.tree.session())), late.rng)
        await herds.begin()
        workshop = workshop_of(bookies.client(store=late.store(bookies.tree.session())))
        tasks = [asyncio.create_task(herds.move(who)) for who in range(2)]
        tasks.append(asyncio.create_task(herds.retell(*LOGS_OF_TWO)))
        tasks.append(asyncio.create_task(herds.retell(*reversed(LOGS_OF_TWO))))
        tasks.append(asyncio.create_task(herds.take_over()))
        for _ in range(3):
            await elapse(late.rng.random() * 0.1)
            before = list(herds.acknowledged)
            check(await entries_of(workshop, await take_cut(workshop)), before)
        assert len(herds.acknowledged) > 50
        for task in tasks:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    virtually(script())


async def test_a_move_between_two_logs_during_a_read_starts_another_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody holds a log here: that two looks are alike is enough."""
    monkeypatch.setattr(StoreHold, "_changed", lambda _: None)
    bookies = await Cluster.of(3)
    herds = Herds(bookies.client(), random.Random(1))
    await herds.begin()
    ann, bob = LOGS_OF_TWO
    looked: list[str] = []

    async def apart(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
        if name.endswith(bob):
            # The other log is looked at meanwhile.
            await turns(200)
            looked.append(bob)
            if (step := len(looked)) <= 3:
                await herds.append(ann, b"1 %d" % (2 * step - 2))
                await herds.append(bob, b"1 %d" % (2 * step - 1))
        return await take_log(workshop, name, keys)

    take_log = cutting._take_log
    monkeypatch.setattr(cutting, "_take_log", apart)
    workshop = workshop_of(bookies.client())
    check(await entries_of(workshop, await take_cut(workshop)), [])
    assert len(looked) == 5


def test_a_backup_fails_and_names_a_log_whose_leader_never_stops_appending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one of an earlier version does."""

    async def script() -> None:
        monkeypatch.setattr(StoreHold, "_changed", lambda _: None)
        late = Late(1)
        bookies = await Cluster.of(3)
        bookies.client_clock = LoopClock()
        for bookie in bookies.bookies:
            late.bookie(bookie)
        client = bookies.client()
        herds = Herds(client, late.rng)
        await herds.begin()
        moving = asyncio.create_task(herds.move(1))
        with pytest.raises(Unavailable, match=r"log herd-of-ann, log herd-of-bob changed"):
            await take_cut(workshop_of(client))
        assert await client.store.get(HOLD) is None
        moving.cancel()

    virtually(script())


async def test_a_hold_of_another_backup_does_not_keep_a_quiet_store_from_being_backed_up() -> None:
    bookies = await Cluster.of(3)
    client, other = bookies.client(), bookies.tree.session()
    leader = await ReplicatedLog(client, "mine").lead()
    await leader.append(b"moo")
    await other.create(HOLD, b"another 1")
    assert (await take_cut(workshop_of(client))).ends[leader.ledger] == 0
    assert await other.get(HOLD) is not None, "the other one's key stays"
    await leader.close()


async def test_a_log_that_begins_while_the_cut_is_taken_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookies = await Cluster.of(3)
    client = bookies.client()
    await (await ReplicatedLog(client, "old").lead()).append(b"moo")
    begun: list[LogWriter] = []

    async def taken(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
        listed = await take_log(workshop, name, keys)
        if not begun:
            # What is acknowledged here may be the cause of all that follows.
            begun.append(await ReplicatedLog(bookies.client(), "new").lead())
            await begun[0].append(b"moo")
        return listed

    take_log = cutting._take_log
    monkeypatch.setattr(cutting, "_take_log", taken)
    cut = await take_cut(workshop_of(client))
    assert cut.ends[begun[0].ledger] == 0 and f"{LOGS}/new/list" in cut.keys


async def test_ledgers_are_not_listed_while_the_logs_are_held() -> None:
    bookies = await Cluster.of(3)
    client, other = bookies.client(), bookies.tree.session()
    await (await ReplicatedLog(client, "mine").lead()).append(b"moo")
    page, held = client.store.page, list[bool]()

    async def listed(prefix: str, above: int = -1) -> Page:
        if prefix == LEDGERS:
            held.append(await other.get(HOLD) is not None)
        return await page(prefix, above)

    client.store.page = listed  # type: ignore[method-assign]
    await take_cut(workshop_of(client))
    assert held == [False, False]


# Tasks and tables


async def sell(book: AsyncBook, who: int) -> None:
    """Run the waiting task, whose effect is a row, on a separate worker."""
    broker = (await book.tasks()).calls
    assert isinstance(broker, Broker)
    worker = await FakeWorker.connected(broker, f"w{who}", process_id=f"w{who}")
    [task] = await worker.until_runs(1)
    session = await book.herd.session("default")
    await session.execute(f"INSERT INTO sold VALUES ({who})")
    await session.close()
    await worker.finish(task)
    await worker.leave()


async def hand_over(book: AsyncBook) -> None:
    """Submit what the outbox holds, and take it out when that is acknowledged."""
    await (await book.tasks()).calls.submit([Spec("weigh", payload=b"elsa")])
    session = await book.herd.session("default")
    await session.execute("DELETE FROM outbox")
    await session.close()


def test_a_task_that_runs_while_a_backup_looks_neither_runs_again_nor_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def backed_up(workers: ThreadWorkers) -> None:
        async with open_async(tmp_path / "store") as book:
            session = await book.herd.session("default")
            await session.execute("CREATE TABLE sold (id INT PRIMARY KEY)")
            await session.execute("CREATE TABLE outbox (id INT PRIMARY KEY)")
            await session.execute("INSERT INTO outbox VALUES (1)")
            await session.close()
            spec = Spec("sell", mode=Mode.AT_MOST_ONCE, retention_ms=10_000_000)
            await (await book.tasks()).calls.submit([spec])
            looked: list[str] = []

            async def between(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
                looked.append(name)
                if len(looked) == 2:
                    # One log was looked at, the other one was not.
                    await sell(book, 1)
                    await hand_over(book)
                return await take_log(workshop, name, keys)

            take_log = cutting._take_log
            monkeypatch.setattr(cutting, "_take_log", between)
            await back_up(book.ledgers, workers, tmp_path / "backups", kind="folder")

    async def compared() -> None:
        async with open_async(tmp_path / "again") as book:
            broker, session = (await book.tasks()).calls, await book.herd.session("default")
            tasks = (await broker.tasks(TaskFilter(), 0, 100)).tasks
            sold = (await session.execute("SELECT id FROM sold")).rows
            outbox = (await session.execute("SELECT id FROM outbox")).rows
            await session.close()
            begun = [task.status is not Status.WAITING for task in tasks if task.type == "sell"]
            assert begun == [True] or (begun == [False] and not sold)
            assert outbox or "weigh" in [task.type for task in tasks]

    async def work() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        await backed_up(workers)
        assert BackupFolder(tmp_path / "backups").read().one_moment
        await restore_folder(workers, tmp_path / "backups", tmp_path / "again")
        await workers.close()
        await compared()

    asyncio.run(work())
