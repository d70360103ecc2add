"""A slow or interrupted restore, while everything that closes and deletes ledgers runs too."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import cluster
from engine.bookie.rebuild import Remains, rebuild_ledger
from engine.errors import InvalidRequest, KeyExists, Unavailable
from engine.ledger.keys import key_hash, key_of
from engine.log import ReplicatedLog
from engine.metadata.bookies import LOST
from engine.metadata.ledgers import LEDGERS, Fragment, LedgerMetadata, Ledgers, State
from engine.metadata.repairs import RepairItem
from engine.metadata.restoring import (
    MARK,
    Restoration,
    mark_restoration,
    restoration_under_way,
)
from engine.ports.system_workers import ThreadWorkers
from engine.repair.auditor import UNFINISHED
from engine.repair.decommission import Decommission
from engine.repair.scrub import Scrub
from engine.transport.contract import Status
from herd.errors import OperationalError
from herd.nodes.directory import Directory
from herd.nodes.facts import SPACES, SpaceFact, encode_fact
from herdbook.archive import BackupFolder, StoreManifest, back_up, restore_cluster
from herdbook.archive.ledger_file import read_blocks
from herdbook.archive.manifest import KeptLedger
from herdbook.archive.writing_back import write_back
from tests.engine.ledger.scripted import QUICK, turns
from tests.engine.repair.yard import Yard
from tests.herdbook.test_archive import call
from tests.herdbook.test_archive_cut import logged

BODIES = [b"entry %d" % number for number in range(10)]
KEPT = KeptLedger(
    ledger_id=7,
    last=9,
    length=sum(map(len, BODIES)),
    ensemble=3,
    write_quorum=3,
    ack_quorum=2,
    stripe_entries=256,
    key_hash=key_hash(key_of(b"")),
    created_ms=1,
    custom={},
)


class Cut(Exception):
    """Somebody pulls the plug."""


async def bodies(more: asyncio.Event) -> AsyncIterator[list[bytes]]:
    """The first half of the entries, and the rest when a slow medium has it."""
    yield BODIES[:5]
    await more.wait()
    yield BODIES[5:]


async def half_written(yard: Yard, more: asyncio.Event) -> "asyncio.Task[bool]":
    """Begin to write ledger 7 back; its first half is on the bookies when this returns."""
    writing = asyncio.ensure_future(write_back(yard.workshop(), QUICK, 3, KEPT, bodies(more)))
    await turns(100)
    assert all(len(bookie.entries.get(7, {})) == 5 for bookie in yard.bookies)
    return writing


async def repaired(yard: Yard) -> None:
    """Let the auditor look, and a worker try what is queued, for much longer than any grace."""
    auditor, repairer = yard.auditor(), yard.repairer()
    await yard.look(auditor, 8)
    for _ in range(4):
        yard.clock.now_s += 31
        await repairer.run_once()
    await auditor.close()


async def test_repair_never_closes_a_ledger_that_is_being_restored() -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    await repaired(yard)
    assert await yard.queue.ids() == []
    assert (await yard.metadata(7)).state is not State.CLOSED
    # Somebody asks for it all the same.
    await yard.queue.request(7, RepairItem(reasons=(UNFINISHED,)))
    await repaired(yard)
    item = await yard.item(7)
    assert item is not None and "being restored" in item.blocked
    more.set()
    assert await writing
    found = await yard.metadata(7)
    assert (found.state, found.last_entry, found.length) == (State.CLOSED, 9, KEPT.length)
    assert not yard.lacking(found)
    assert not await write_back(yard.workshop(), QUICK, 3, KEPT, bodies(more))


async def test_nobody_opens_or_recovers_a_ledger_that_is_being_restored() -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    client = yard.client()
    for recover in (True, False):
        with pytest.raises(Unavailable, match="ledger 7 is being restored"):
            await client.open_ledger(7, recover=recover)
    assert not any(bookie.fenced for bookie in yard.bookies)
    more.set()
    assert await writing
    reader = await client.open_ledger(7, recover=False)
    assert [entry.body async for entry in reader.read(0, 9)] == BODIES


async def test_a_scrub_and_a_decommission_wait_for_a_ledger_that_is_being_restored() -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    await yard.add("b3")
    workshop = yard.workshop()
    assert (await Scrub(workshop).run()).faults == 0
    leaving = Decommission(workshop, "b0")
    await leaving.begin()
    assert (await leaving.look()).left == 1
    await repaired(yard)
    assert "being restored" in (await leaving.look()).blocking[0].why
    more.set()
    assert await writing
    await leaving.look()
    await repaired(yard)
    assert (await leaving.look()).left == 0
    assert not yard.lacking(await yard.metadata(7))


async def test_rebuilt_metadata_of_a_half_restored_ledger_have_its_full_end() -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    remains: dict[str, Remains] = {}
    for bookie in yard.bookies:
        one = remains[bookie.bookie_id] = Remains()
        for facts in bookie.facts:
            one.learn(facts)
        one.hold(0, 4)
    found = rebuild_ledger(7, remains)
    assert isinstance(found, LedgerMetadata)
    assert (found.state, found.last_entry, found.length) == (State.CLOSED, 9, KEPT.length)
    more.set()
    assert await writing


async def test_a_bookie_lost_during_a_restore_is_repaired_afterwards() -> None:
    yard, more = await Yard.of(4), asyncio.Event()
    writing = asyncio.ensure_future(write_back(yard.workshop(), QUICK, 4, KEPT, bodies(more)))
    await turns(100)
    assert sum(7 in bookie.entries for bookie in yard.bookies) == 3
    lost = (await yard.metadata(7)).fragments[0].ensemble[1]
    await yard.registry.unregister(lost)
    yard.transport.bookies[lost].append_status = Status.READ_ONLY
    await yard.store.create(f"{LOST}/{lost}", b"0")
    # What is lost is asked for at once, and waits.
    await repaired(yard)
    item = await yard.item(7)
    assert item is not None and item.lost == (lost,) and "being restored" in item.blocked
    more.set()
    assert await writing
    assert len((await yard.metadata(7)).fragments) == 2
    yard.transport.bookies[lost].down = True
    await repaired(yard)
    found = await yard.metadata(7)
    assert not yard.lacking(found) and not found.degraded and found.last_entry == 9


async def test_an_earlier_programs_restore_is_continued_and_no_longer_recovered() -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    earlier = LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ("b0", "b1", "b2")),),
        key_hash=KEPT.key_hash,
        created_ms=1,
        token=0,
        state=State.IN_RECOVERY,
    )
    await Ledgers(yard.store, random.Random(1)).create(earlier)
    writing = await half_written(yard, more)
    assert (await yard.metadata(7)).restoring
    await repaired(yard)
    more.set()
    assert await writing and not yard.lacking(await yard.metadata(7))


async def test_an_earlier_program_leaves_a_ledger_that_is_being_restored_alone() -> None:
    """It reads `format_major` first, and 1 was the newest that it knew."""
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    value = await yard.store.get(f"{LEDGERS}/7")
    assert value is not None and msgspec.msgpack.decode(value.value)["format_major"] == 2
    more.set()
    assert await writing
    value = await yard.store.get(f"{LEDGERS}/7")
    assert value is not None and "format_major" not in msgspec.msgpack.decode(value.value)


@pytest.mark.parametrize("end", [(4, 35), (9, KEPT.length - 1)])
async def test_a_restore_fails_if_a_ledger_does_not_end_where_it_does_in_the_backup(
    end: tuple[int, int],
) -> None:
    yard, more = await Yard.of(3), asyncio.Event()
    writing = await half_written(yard, more)
    ledgers = Ledgers(yard.store, random.Random(1))

    def closed(current: LedgerMetadata) -> LedgerMetadata:
        found = msgspec.structs.replace(current, state=State.CLOSED, format_major=1)
        return msgspec.structs.replace(found, last_entry=end[0], length=end[1])

    # As a program did that knew of no restorations.
    value = msgspec.msgpack.encode(closed((await ledgers.read(7)).metadata))
    await yard.store.set(f"{LEDGERS}/7", value, 0)
    more.set()
    with pytest.raises(KeyExists, match=f"CLOSED at entry {end[0]} .* ends at entry 9"):
        await writing
    with pytest.raises(KeyExists, match="in the backup"):
        await write_back(yard.workshop(), QUICK, 3, KEPT, bodies(more))


# All of a store


async def backed_up(yard: Yard, path: Path, workers: ThreadWorkers) -> StoreManifest:
    """A backup of a log, of ledgers and of a tablespace."""
    client = yard.client()
    await logged(client, "mine")
    await logged(client, "herd/farm")
    await client.store.create(f"{SPACES}/farm", encode_fact(SpaceFact("1", 0)))
    for count in (0, 10):
        writer = await client.create_ledger()
        if count:
            await writer.append_many(BODIES)
        await writer.close()
    await back_up(client, workers, path, kind="cluster")
    return BackupFolder(path).read()


class Steps:
    """Counts the calls of a store and of bookies, and pulls the plug behind one of them."""

    def __init__(self, yard: Yard, at: int) -> None:
        self.count, self._at = 0, at
        self.store = yard.tree.session()
        for name in ("get", "create", "set", "delete", "children", "next_id", "sync"):
            setattr(self.store, name, self._stepped(getattr(self.store, name)))
        self._yard = yard
        self._appends = {bookie: bookie.append for bookie in yard.bookies}
        for bookie, append in self._appends.items():
            bookie.append = self._after(append)  # type: ignore[method-assign]

    def end(self) -> None:
        """Leave the bookies alone."""
        for bookie, append in self._appends.items():
            bookie.append = append  # type: ignore[method-assign]

    def _step(self) -> None:
        self.count += 1
        if self.count >= self._at:
            # After that no task does anything.
            raise Cut

    def _stepped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def stepped(*given: Any, **named: Any) -> Any:
            if self.count >= self._at:
                raise Cut
            found = await call(*given, **named)
            self._step()
            return found

        return stepped

    def _after(self, call: Callable[..., None]) -> Callable[..., None]:
        def stepped(*given: Any, **named: Any) -> None:
            if self.count >= self._at:
                raise Cut
            call(*given, **named)
            self._step()

        return stepped


async def begun(yard: Yard, path: Path, workers: ThreadWorkers, at: int) -> bool:
    """Restore up to a step; returns whether it was interrupted there."""
    steps = Steps(yard, at)
    try:
        client = yard.client(store=steps.store)
        await restore_cluster(client, workers, path, replicas=1)
    except Cut:
        return True
    finally:
        steps.end()
    return False


async def used(yard: Yard) -> None:
    """Run repair, a log's leader, its sweeper and a node after an interrupted restore."""
    client = yard.client()
    for ledger_id in await client.list_ledgers():
        await yard.queue.request(ledger_id, RepairItem(reasons=(UNFINISHED,)))
    await repaired(yard)
    if not await restoration_under_way(client.store):
        return
    log = ReplicatedLog(client, "mine")
    assert await log.sweep(set(), 1_000) == []
    with pytest.raises(Unavailable, match="this store is being restored"):
        await log.lead()
    with pytest.raises((Unavailable, OperationalError), match="this store is being restored"):
        await Directory(client.store, random.Random(1)).create("farm", SpaceFact("2", 0))


async def whole(yard: Yard, manifest: StoreManifest) -> None:
    """All of a backup is in a store: names, ends, and each entry on each of its replicas."""
    client = yard.client()
    assert await client.list_ledgers() == [kept.ledger_id for kept in manifest.ledgers]
    for kept in manifest.ledgers:
        found = await client.ledger_metadata(kept.ledger_id)
        assert found.closed and (found.last_entry, found.length) == (kept.last, kept.length)
        assert not yard.lacking(found)
    for key, value in manifest.keys.items():
        there = await client.store.get(key)
        assert there is not None and (there.value == value or key.startswith(SPACES))
    assert await client.store.get(MARK) is None


async def test_a_restore_interrupted_at_any_step_can_be_continued_and_completes(
    tmp_path: Path,
) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    backups = tmp_path / "backups"
    manifest = await backed_up(await Yard.of(3), backups, workers)
    at, cuts = 0, 0
    while True:
        at += 1
        yard = await Yard.of(3)
        if not await begun(yard, backups, workers, at):
            break
        cuts += 1
        await used(yard)
        if await yard.store.get(MARK) is None and await yard.store.children(LEDGERS):
            # The last step was done.
            with pytest.raises(InvalidRequest, match="not empty"):
                await begun(yard, backups, workers, 1_000_000)
        else:
            assert not await begun(yard, backups, workers, 1_000_000)
        await whole(yard, manifest)
    assert cuts > 40
    await workers.close()


class Opened:
    """Counts the files of ledgers that are open; the thread that reads one can be made to wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files, self.asked = 0, threading.Event()
        self.free = threading.Event()
        self.free.set()
        monkeypatch.setattr("herdbook.archive.restore.read_blocks", self.read)

    def read(self, *of: Any) -> Iterator[list[bytes]]:
        self.files += 1
        try:
            self.asked.set()
            self.free.wait()
            yield from read_blocks(*of)
        finally:
            self.files -= 1


async def test_a_restore_that_fails_closes_the_files_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*of: Any) -> bool:
        async for _ in of[-1]:
            break
        raise Unavailable("all bookies are away")

    workers, yard = ThreadWorkers(asyncio.get_running_loop()), await Yard.of(3)
    await backed_up(yard, tmp_path / "backups", workers)
    opened = Opened(monkeypatch)
    monkeypatch.setattr("herdbook.archive.restore.write_back", failing)
    client = (await Yard.of(3)).client()
    with pytest.raises(Unavailable) as failure:
        await restore_cluster(client, workers, tmp_path / "backups", replicas=1)
    # What failed is still at hand, so nothing was closed by being thrown away.
    assert failure.value.__cause__ is not None
    # A thread may be reading still.
    await workers.close()
    await turns()
    assert opened.files == 0


async def test_a_restore_cancelled_while_a_thread_reads_closes_the_file_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, yard = ThreadWorkers(asyncio.get_running_loop()), await Yard.of(3)
    await backed_up(yard, tmp_path / "backups", workers)
    opened = Opened(monkeypatch)
    opened.free.clear()
    client = (await Yard.of(3)).client()
    restore = asyncio.ensure_future(
        restore_cluster(client, workers, tmp_path / "backups", replicas=1)
    )
    await asyncio.to_thread(opened.asked.wait)
    restore.cancel()
    await asyncio.wait([restore])
    assert restore.cancelled() and opened.files
    opened.free.set()
    await workers.close()
    await turns()
    assert opened.files == 0


def test_a_check_of_a_store_that_is_being_restored_says_so(tmp_path: Path) -> None:
    async def marked() -> None:
        async with cluster.open(tmp_path / "store") as client:
            await mark_restoration(client.store, Restoration("x", 1, 2, under_way=True))

    asyncio.run(marked())
    checked = call("store", "check", "--url", tmp_path / "store")
    assert checked.exit_code == 1 and "`herdbook store restore` continues" in checked.stderr


async def test_a_store_that_is_being_restored_is_not_backed_up(tmp_path: Path) -> None:
    yard, workers = await Yard.of(3), ThreadWorkers(asyncio.get_running_loop())
    client = yard.client()
    await mark_restoration(client.store, Restoration("x", 1, 2, under_way=True))
    with pytest.raises(Unavailable, match="this store is being restored"):
        await back_up(client, workers, tmp_path / "backups", kind="cluster")
    await workers.close()


async def test_a_restore_fails_if_a_ledger_is_truncated_while_others_are_restored(
    tmp_path: Path,
) -> None:
    workers = ThreadWorkers(asyncio.get_running_loop())
    backups = tmp_path / "backups"
    manifest = await backed_up(await Yard.of(3), backups, workers)
    yard = await Yard.of(3)
    key = f"{LEDGERS}/{manifest.ledgers[-1].ledger_id}"

    async def cut_off() -> None:
        found = await yard.store.get(key)
        assert found is not None
        value = msgspec.msgpack.decode(found.value) | {"last_entry": 0, "length": 7}
        await yard.store.set(key, msgspec.msgpack.encode(value), found.version)

    def step(done: int, total: int, size_bytes: int) -> None:
        if done == total:
            cutting.append(asyncio.get_running_loop().create_task(cut_off()))

    cutting: list[asyncio.Task[None]] = []
    with pytest.raises(KeyExists, match="in the backup"):
        await restore_cluster(yard.client(), workers, backups, replicas=1, progress=step)
    assert not await yard.store.children(SPACES)
    await workers.close()
