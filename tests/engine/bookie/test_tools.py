"""Tools that look into the folders of a closed store: they find what is wrong, change nothing."""

import asyncio
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from engine.bookie.__main__ import app
from engine.bookie.index import Changes, Position
from engine.bookie.index_rocks import RocksIndex
from engine.bookie.indexing import DAMAGE_KEY, TOMBSTONE, Released, apply_items, fact_key
from engine.bookie.service import BookieService
from engine.bookie.settings import BookieSettings
from engine.bookie.tools_check import CheckReport, check_folder
from engine.bookie.tools_dump import dump_folder
from engine.bookie.tools_folder import quiet_folders
from engine.bookie.tools_inspect import inspect_folder
from engine.cluster import Engine
from engine.cluster import open as open_engine
from engine.errors import FolderLocked, FolderMismatch, NoSuchLedger
from engine.metadata.local import LocalStore
from engine.ports.clock import SystemClock
from engine.ports.system_disk import SystemDisk
from engine.ports.system_workers import ThreadWorkers

SMALL = BookieSettings(segment_bytes=20_000)
LEDGERS, ENTRIES, OPEN = 5, 60, 4


def body(ledger_id: int, entry_id: int) -> bytes:
    return b"%d/%d " % (ledger_id, entry_id) * 30


async def fill(store: Path) -> None:
    """Five ledgers of sixty entries on each of two bookies, the fourth one left open."""
    async with open_engine(store, bookies=2, bookie_settings=SMALL) as engine:
        for _ in range(LEDGERS):
            writer = await engine.create_ledger(2, 2, 2, metadata={"app": b"cow"}, password=b"moo")
            for first in range(0, ENTRIES, 4):
                ids = range(first, first + 4)
                await writer.append_many([body(writer.ledger_id, one) for one in ids])
            if writer.ledger_id != OPEN:
                await writer.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("filled") / "store"
    asyncio.run(fill(store))
    return store


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A store of one's own to harm."""
    return Path(shutil.copytree(filled, tmp_path / "store"))


def check(path: Path) -> CheckReport:
    with quiet_folders([path]) as (folder,):
        return check_folder(folder)


def segments(bookie: Path) -> list[Path]:
    return sorted((bookie / "journal").glob("*.segment"))


def reasons(report: CheckReport) -> str:
    return "; ".join(problem.reason for problem in report.problems)


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    return result.exit_code, result.stdout


async def all_entries(engine: Engine) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for ledger_id in await engine.list_ledgers():
        reader = await engine.open_ledger(ledger_id, password=b"moo")
        found[ledger_id] = [one.body async for one in reader.read(0, reader.last_add_confirmed)]
        await reader.close()
    return found


# Check


def test_a_healthy_store_is_clean(filled: Path) -> None:
    code, text = run("check", filled, "--json")
    reports = msgspec.json.decode(text)
    assert code == 0 and [one["healthy"] for one in reports] == [True, True]
    for one in reports:
        assert (one["problems"], one["notes"]) == ([], [])
        assert one["segments"] > 2 and one["entries"] == LEDGERS * ENTRIES


def test_a_scrub_finds_every_flipped_bit_and_every_lost_sector(store: Path) -> None:
    rng = random.Random(2026)
    bookie = store / "bookie-1"
    missed: list[tuple[str, int, int]] = []
    for number in range(120):
        segment = rng.choice(segments(bookie))
        intact = segment.read_bytes()
        at = rng.randrange(len(intact))
        harmed = bytearray(intact)
        if number % 2:
            harmed[at] ^= 1 << rng.randrange(8)
        else:
            at -= at % 512
            harmed[at : at + 512] = rng.randbytes(len(harmed[at : at + 512]))
        segment.write_bytes(harmed)
        if check(bookie).healthy:
            missed.append((segment.name, at, number))
        segment.write_bytes(intact)
    assert missed == []
    assert check(bookie).healthy


def test_a_check_names_the_ledger_and_the_entries_that_are_damaged(store: Path) -> None:
    bookie = store / "bookie-1"
    with quiet_folders([bookie]) as (folder,):
        line = next(one for one in dump_folder(folder, ledger_id=2) if one["kind"] == "RUN")
    segment = segments(bookie)[int(str(line["segment"])) - 1]
    data = bytearray(segment.read_bytes())
    end = int(str(line["offset"])) + int(str(line["size_bytes"]))
    data[end - 1] ^= 1
    segment.write_bytes(data)
    (problem,) = check(bookie).problems
    assert (problem.ledger_id, problem.first, problem.last) == (2, line["last"], line["last"])


def test_a_missing_and_a_short_segment_are_found(store: Path) -> None:
    bookie = store / "bookie-1"
    newest, middle = segments(bookie)[-1], segments(bookie)[1]
    data = newest.read_bytes()
    newest.write_bytes(data[:-700])
    assert "cut short" in reasons(check(bookie))
    newest.write_bytes(data)
    data = middle.read_bytes()
    middle.write_bytes(data[:-700])
    assert "cut short" in reasons(check(bookie))
    middle.unlink()
    assert "the segment is missing" in reasons(check(bookie))
    middle.write_bytes(data)
    newest.unlink()
    assert "the segment is missing" in reasons(check(bookie))


def test_a_torn_tail_is_a_note_and_no_problem(store: Path) -> None:
    bookie = store / "bookie-1"
    with segments(bookie)[-1].open("ab") as file:
        file.write(b"half a batch")
    report = check(bookie)
    assert report.healthy and "torn tail of 12 bytes" in report.notes[0]


def change_index(bookie: Path, make: Callable[[RocksIndex], Changes]) -> None:
    index = RocksIndex(bookie / "index")
    index.apply(make(index))
    index.close()


def test_entries_that_were_given_back_are_not_lacking_unless_they_were_written_since(
    store: Path,
) -> None:
    bookie = store / "bookie-1"
    index = RocksIndex(bookie / "index")
    end = index.position()
    apply_items(index, [Released(3, 2, 5, end), Released(3, 8, 20, end)], end)
    assert index.find(3, 2, 5) == [] and index.find(3, 8, 20) == []
    index.close()
    assert check(bookie).healthy
    # What is in the journal behind the moment of the release must be in the index.
    index = RocksIndex(bookie / "index")
    apply_items(index, [Released(3, 24, 24, Position(0, 0))], end)
    index.close()
    assert reasons(check(bookie)) == "the index lacks entries that the journal holds"


def test_an_index_that_disagrees_with_the_journal_is_found(store: Path) -> None:
    def without(index: RocksIndex) -> Changes:
        return Changes(index.find(3, 0, 0), [], [], index.position())

    def astray(index: RocksIndex) -> Changes:
        place = index.find(3, 8, 8)[0]
        return Changes([place], [place._replace(offset=place.offset + 1)], [], index.position())

    def otherwise(index: RocksIndex) -> Changes:
        place = index.find(3, 16, 16)[0]
        return Changes([place], [place._replace(size_bytes=1)], [], index.position())

    def damaged(index: RocksIndex) -> Changes:
        place = index.find(3, 24, 24)[0]
        return Changes([place], [place._replace(segment=-1)], [], index.position())

    def doubt(index: RocksIndex) -> Changes:
        return Changes([], [], [(DAMAGE_KEY, b"")], index.position())

    bookie = store / "bookie-1"
    expected = [
        (without, "lacks entries"),
        (astray, "a record that is not there"),
        (otherwise, "otherwise than it is"),
        (damaged, "wait for repair"),
        (doubt, "count as unknown"),
    ]
    for make, reason in expected:
        assert reason not in reasons(check(bookie))
        change_index(bookie, make)
        assert reason in reasons(check(bookie))


async def test_a_deleted_or_fenced_ledger_that_the_index_forgot_is_found(store: Path) -> None:
    await bury(store, "bookie-1", 2)
    bookie = store / "bookie-1"
    assert check(bookie).healthy
    key = fact_key(TOMBSTONE, 2)
    change_index(bookie, lambda index: Changes([], [], [(key, None)], index.position()))
    assert "was deleted" in reasons(check(bookie))


def test_a_lost_index_is_a_note_for_the_next_start_makes_it_again(store: Path) -> None:
    shutil.rmtree(store / "bookie-1" / "index")
    report = check(store / "bookie-1")
    assert report.healthy and "no index" in report.notes[0]


def test_a_damaged_identity_is_a_problem_and_the_journal_is_still_checked(store: Path) -> None:
    (store / "bookie-1" / "identity").write_bytes(b"rubbish that is no identity at all")
    report = check(store / "bookie-1")
    assert "identity" in reasons(report) and report.entries == LEDGERS * ENTRIES


# Refusals, and that nothing changes


async def test_a_folder_in_use_is_refused(store: Path) -> None:
    async with open_engine(store, bookies=2, bookie_settings=SMALL):
        for path in (store, store / "bookie-1"):
            with pytest.raises(FolderLocked), quiet_folders([path]):
                pass
        code, _ = await asyncio.to_thread(run, "check", store)
        assert code == 2
    assert run("check", store)[0] == 0


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FolderMismatch), quiet_folders([tmp_path]):
        pass
    assert run("inspect", tmp_path / "nowhere")[0] == 2


def test_no_tool_changes_a_byte(store: Path) -> None:
    def content() -> dict[str, bytes]:
        files = [one for one in sorted(store.rglob("*")) if one.is_file()]
        return {str(one): one.read_bytes() for one in files}

    before = content()
    for verb in ("check", "dump", "inspect"):
        assert run(verb, store)[0] == 0
        assert run(verb, store, "--json")[0] == 0
    assert content() == before


# Dump and inspect


def test_a_dump_lists_every_record_in_order(filled: Path) -> None:
    with quiet_folders([filled / "bookie-1"]) as (folder,):
        lines = list(dump_folder(folder))
    places = [(line["segment"], line["offset"]) for line in lines]
    assert places == sorted(places)
    for ledger_id in range(1, LEDGERS + 1):
        mine = [one for one in lines if one.get("ledger_id") == ledger_id]
        kinds = [one["kind"] for one in mine]
        assert kinds.index("FACTS") < kinds.index("RUN")
        runs = [(one["first"], one["last"]) for one in mine if one["kind"] == "RUN"]
        assert runs[0][0] == 0 and runs[-1][1] == ENTRIES - 1
    assert lines[-1]["kind"] == "SYNCED"


def test_a_dump_of_a_damaged_journal_goes_on_and_says_so(store: Path) -> None:
    segment = segments(store / "bookie-1")[1]
    data = bytearray(segment.read_bytes())
    data[2_000] ^= 1
    segment.write_bytes(data)
    code, text = run("dump", store / "bookie-1", "--json")
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    flawed = [one for one in lines if one["kind"] == "FLAW" or one.get("intact") is False]
    assert len(flawed) == 1 and lines[-1]["kind"] == "SYNCED"
    assert code == (1 if flawed[0]["kind"] == "FLAW" else 0)


def test_inspection_shows_ledgers_ranges_facts_and_space(filled: Path) -> None:
    with quiet_folders([filled / "bookie-2"]) as (folder,):
        found = inspect_folder(folder)
    assert [one["ledger_id"] for one in found["ledgers"]] == [1, 2, 3, 4, 5]
    for one in found["ledgers"]:
        assert one["ranges"] == [[0, ENTRIES - 1]] and one["entries"] == ENTRIES
        assert one["closed"] == (one["ledger_id"] != OPEN) and not one["deleted"]
        assert one["facts"][0]["custom"] == {"app": b"cow".hex()}
    assert all(0 < one["live_bytes"] <= one["size_bytes"] for one in found["segments"])
    code, text = run("inspect", filled, "--ledger", "3", "--json")
    assert code == 0
    assert [
        [one["ledger_id"] for one in line["ledgers"]] for line in msgspec.json.decode(text)
    ] == [
        [3],
        [3],
    ]


# Rebuilding metadata


async def bury(store: Path, name: str, ledger_id: int) -> None:
    """Collect a ledger on one bookie, as its upkeep does."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    rng = random.Random(1)
    metadata = await LocalStore.open(SystemDisk(store / "metadata"), workers, rng)
    service = await BookieService.start(
        disk=SystemDisk(store / name),
        open_index=partial(RocksIndex, store / name / "index"),
        workers=workers,
        clock=SystemClock(),
        rng=rng,
        store=metadata,
        settings=SMALL,
    )
    await service.bury([ledger_id])
    await service.close()
    await metadata.close()


async def test_a_lost_metadata_folder_is_rebuilt_and_everything_is_read(store: Path) -> None:
    async with open_engine(store, bookies=2, bookie_settings=SMALL) as engine:
        await engine.delete_ledger(2)
    await bury(store, "bookie-2", 2)
    shutil.rmtree(store / "metadata")
    arguments = ("rebuild-metadata", store, "--into", store / "metadata", "--json")
    code, text = await asyncio.to_thread(run, *arguments)
    report = msgspec.json.decode(text)
    assert (code, report["restored"], report["deleted"]) == (0, [1, 3, 4, 5], [2])
    async with open_engine(store, bookies=2, bookie_settings=SMALL) as engine:
        entries = await all_entries(engine)
        assert entries == {
            one: [body(one, entry_id) for entry_id in range(ENTRIES)] for one in (1, 3, 4, 5)
        }
        with pytest.raises(NoSuchLedger):
            await engine.open_ledger(2, password=b"moo")
        writer = await engine.create_ledger(2, 2, 2)
        assert writer.ledger_id > LEDGERS
        await writer.close()


async def test_rebuilding_keeps_what_the_metadata_store_still_knows(store: Path) -> None:
    before = (store / "metadata").stat().st_ino
    arguments = ("rebuild-metadata", store / "bookie-1", "--into", store / "metadata", "--json")
    code, text = await asyncio.to_thread(run, *arguments)
    report = msgspec.json.decode(text)
    assert (code, report["restored"], report["kept"]) == (0, [], [1, 2, 3, 4, 5])
    assert (store / "metadata").stat().st_ino == before


def test_metadata_of_another_cluster_is_refused_and_not_touched(
    store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    asyncio.run(fill(other))
    log = next((other / "metadata").iterdir())
    before = log.read_bytes()
    assert run("rebuild-metadata", store, "--into", other / "metadata")[0] == 2
    assert run("rebuild-metadata", store, other, "--into", tmp_path / "new")[0] == 2
    assert log.read_bytes() == before and not (tmp_path / "new").exists()
