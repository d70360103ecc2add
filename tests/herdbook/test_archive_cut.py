"""What a cut takes together, what it passes over, and in which order a store is made of it."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from engine.errors import CannotRead
from engine.ledger.client import LedgerClient
from engine.log import ReplicatedLog
from engine.log.log_list import LogList
from engine.log.position import Position
from engine.metadata.contract import Versioned
from engine.metadata.ledgers import LEDGERS, LedgerMetadata
from engine.metadata.lost_logs import forget_lost, note_lost
from engine.ports.system_workers import ThreadWorkers
from engine.repair.outlook import Workshop
from engine.repair.survey import survey
from engine.replica.snapshots import SnapshotRecord
from herd.checkpoint.manifest import Checkpoints, encode_checkpoints
from herd.nodes.directory import Directory
from herd.nodes.facts import SETTINGS, SPACES, SettingsFact, SpaceFact, encode_fact
from herdbook.archive import BackupFolder, StoreManifest, back_up, restore_cluster
from herdbook.archive import backup as backing
from herdbook.archive import cut as cutting
from herdbook.archive.cut import Cut, take_cut
from tests.engine.ledger.scripted import Cluster
from tests.herdbook.test_archive_beside import workshop_of, written


@asynccontextmanager
async def clustered() -> AsyncIterator[tuple[LedgerClient, ThreadWorkers]]:
    """A client of three bookies in memory, and threads to read and write backups with."""
    bookies, workers = await Cluster.of(3), ThreadWorkers(asyncio.get_running_loop())
    try:
        yield bookies.client(), workers
    finally:
        await workers.close()


async def backed_up(client: LedgerClient, workers: ThreadWorkers, path: Path) -> StoreManifest:
    """The manifest of one more backup."""
    await back_up(client, workers, path, kind="cluster")
    return BackupFolder(path).read()


async def logged(client: LedgerClient, name: str) -> ReplicatedLog:
    """A log of one entry."""
    log = ReplicatedLog(client, name)
    leader = await log.lead()
    await leader.append(b"moo")
    await leader.close()
    return log


async def test_a_tablespace_that_comes_while_the_others_end_begins_another_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with clustered() as (client, _):
        await logged(client, "mine")
        looked: list[str] = []

        async def taken(workshop: Workshop, name: str, keys: dict[str, bytes]) -> LogList:
            listed = await take_log(workshop, name, keys)
            if not looked:
                await client.store.create(f"{SPACES}/farm", encode_fact(SpaceFact("1", 0)))
            looked.append(name)
            return listed

        take_log = cutting._take_log
        monkeypatch.setattr(cutting, "_take_log", taken)
        cut = await take_cut(workshop_of(client))
        assert f"{SPACES}/farm" in cut.keys
        # The first look saw no tablespace; the two that count are alike.
        assert looked == ["/logs/mine"] + 2 * ["/logs/herd/farm", "/logs/mine"]


async def test_a_log_that_is_truncated_while_it_is_looked_at_begins_another_look() -> None:
    async with clustered() as (client, _):
        await logged(client, "mine")
        log = await logged(client, "mine")
        first, last = [each.ledger for each in (await log.list()).listed]
        snapshot, get = "/logs/mine/snapshot", client.store.get

        async def snapshot_at(place: tuple[int, int]) -> bytes:
            image = await client.create_ledger()
            await image.close()
            return msgspec.msgpack.encode(SnapshotRecord(1, 1, image.ledger_id, place))

        await client.store.create(snapshot, await snapshot_at((first, -1)))
        later: list[bytes] = []

        async def found(key: str) -> Versioned | None:
            value = await get(key)
            if not later and key in (snapshot, "/logs/mine/list"):
                later.append(await snapshot_at((last, 0)))
                now = await get(snapshot)
                assert now is not None
                await client.store.set(snapshot, later[0], now.version)
                assert await log.truncate(Position(last, 0)) == Position(first, 0)
            return value

        client.store.get = found  # type: ignore[method-assign]
        cut = await take_cut(workshop_of(client))
        assert cut.keys[snapshot] == later[0]


async def test_a_log_whose_first_entries_went_since_the_cut_begins_another_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clustered() as (client, workers):
        log = await logged(client, "mine")
        cuts: list[Cut] = []

        async def cut(workshop: Workshop, known: Collection[LedgerMetadata]) -> Cut:
            cuts.append(await take_cut(workshop, known))
            if len(cuts) == 1:
                await (await log.lead()).append(b"moo")
                await client.delete_ledger(min(cuts[0].logs))
                await client.store.delete("/logs/mine/list")
            return cuts[-1]

        monkeypatch.setattr(backing, "take_cut", cut)
        manifest = await backed_up(client, workers, tmp_path / "backups")
        assert len(cuts) == 2 and "/logs/mine/list" not in manifest.keys


async def test_rows_on_their_way_into_a_table_are_not_backed_up(tmp_path: Path) -> None:
    async with clustered() as (client, workers):
        left = await written(client, b"moo")
        for close in (True, False):
            writer = await client.create_ledger(metadata={"owner": b"herd-staging"})
            await writer.append(b"a row")
            if close:
                await writer.close()
        manifest = await backed_up(client, workers, tmp_path / "backups")
        assert [kept.ledger_id for kept in manifest.ledgers] == [left]
        assert len(list((tmp_path / "backups" / "ledgers").iterdir())) == 1


async def test_a_ledger_whose_metadata_cannot_be_read_ends_a_backup_by_its_name(
    tmp_path: Path,
) -> None:
    async with clustered() as (client, workers):
        ledger_id = await written(client, b"moo")
        (key,) = [f"{LEDGERS}/{name}" for name in await client.store.children(LEDGERS)]
        found = await client.store.get(key)
        assert found is not None
        await client.store.set(key, b"spoilt", found.version)
        with pytest.raises(CannotRead, match=f"of {ledger_id} for one"):
            await back_up(client, workers, tmp_path / "backups", kind="cluster")
        assert BackupFolder(tmp_path / "backups").unfinished


async def test_a_log_whose_list_was_lost_ends_a_backup_by_its_name(tmp_path: Path) -> None:
    async with clustered() as (client, workers):
        await logged(client, "herd/farm")
        await client.store.delete("/logs/herd/farm/list")
        ledgers = [held async for held in survey(workshop_of(client))]
        assert await note_lost(client.store, ledgers) == {"herd/farm": 1}
        with pytest.raises(CannotRead, match="the list of log herd/farm was lost"):
            await back_up(client, workers, tmp_path / "backups", kind="cluster")
        assert await forget_lost(client.store, "herd/farm")
        assert (await backed_up(client, workers, tmp_path / "backups")).number == 1


async def test_names_come_last_and_tablespaces_behind_their_logs(tmp_path: Path) -> None:
    async with clustered() as (client, workers):
        await logged(client, "herd/farm")
        await client.store.create(f"{SPACES}/farm", encode_fact(SpaceFact("1", 0)))
        await client.store.create(f"{SPACES}/farm/checkpoints", encode_checkpoints(Checkpoints()))
        await written(client, b"moo")
        manifest = await backed_up(client, workers, tmp_path / "backups")
    async with clustered() as (client, workers):
        create, made = client.store.create, list[str]()

        async def noted(key: str, value: bytes, *, ephemeral: bool = False) -> int:
            if key in manifest.keys:
                ids = await client.list_ledgers()
                assert ids == [kept.ledger_id for kept in manifest.ledgers]
                assert all([(await client.ledger_metadata(each)).closed for each in ids])
                made.append(key)
            return await create(key, value, ephemeral=ephemeral)

        client.store.create = noted  # type: ignore[method-assign]
        await restore_cluster(client, workers, tmp_path / "backups", replicas=1)
        assert made[-1] == f"{SPACES}/farm" and set(made) == set(manifest.keys)


async def test_the_default_number_of_replicas_is_backed_up_and_one_that_was_set_before_holds(
    tmp_path: Path,
) -> None:
    async with clustered() as (client, workers):
        await client.store.create(SETTINGS, encode_fact(SettingsFact(5)))
        await backed_up(client, workers, tmp_path / "backups")
    for own in (None, SettingsFact(2)):
        async with clustered() as (client, workers):
            if own is not None:
                await client.store.create(SETTINGS, encode_fact(own))
            await restore_cluster(client, workers, tmp_path / "backups", replicas=1)
            found = await Directory(client.store, client.rng).settings()
            assert found == (own or SettingsFact(5))


async def test_a_restored_ledger_has_as_many_copies_as_the_new_store_gives_its_own(
    tmp_path: Path,
) -> None:
    async with clustered() as (client, workers):
        for copies in (1, 3):
            writer = await client.create_ledger(copies, copies, copies)
            await writer.append(b"moo")
            await writer.close()
        await backed_up(client, workers, tmp_path / "backups")
    async with clustered() as (client, workers):
        await restore_cluster(client, workers, tmp_path / "backups", replicas=1)
        found = [await client.ledger_metadata(each) for each in await client.list_ledgers()]
        # Never fewer than it had, either.
        assert [(each.write_quorum, each.ack_quorum) for each in found] == [(3, 2), (3, 3)]
