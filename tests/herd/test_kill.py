"""Owners of tables killed with `kill -9` under load: no committed row is lost, none half done."""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import engine
from engine.log import START, Position, ReplicatedLog
from engine.ports.system_workers import ThreadWorkers
from engine.state.memory import MemoryState
from engine.state.rocks import open_rocks
from herd.checkpoint.blobs import read_blob, read_page
from herd.checkpoint.manifest import decode_manifest
from herd.checkpoint.pages import decode_page
from herd.checkpoint.record import CheckpointList
from herd.commands import encode_command
from herd.machine import HerdMachine
from herd.reading_log import log_of, read_commands
from herd.store import DEFAULT, FOLDER, open_folder
from tests.engine.cluster.processes import ROOT, Started
from tests.herd.processes import CALLERS, open_tables, text_of

ROUNDS = int(os.environ.get("HERDBOOK_HERD_KILLS", "5"))
_CHECKPOINT_EACH = 4


@asynccontextmanager
async def loading(folder: Path) -> AsyncIterator[Started]:
    """A process that changes the folder's tables; it is killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.herd.processes", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        cwd=ROOT,
    )
    made = Started(process)
    try:
        yield made
    finally:
        await made.kill()


async def test_owners_killed_under_load_lose_no_committed_row_and_leave_none_half_done(
    tmp_path: Path,
) -> None:
    rng = random.Random(5)
    folder = tmp_path / "farm"
    committed: Counter[int] = Counter()
    checkpoints = 0
    for turn in range(ROUNDS):
        async with loading(folder) as owner:
            assert await owner.line("open")
            if turn % _CHECKPOINT_EACH == 1:
                checkpoints += bool(await _hear(owner, "checkpoint", committed))
            for _ in range(rng.randrange(5, 200)):
                await _hear(owner, "committed", committed)
            owner.process.kill()
            while await _hear(owner, "committed", committed):
                pass
        await _check_state(folder)
        await _check_tables(folder, committed)
    assert min(committed[caller] for caller in range(CALLERS)) > 0
    assert checkpoints >= ROUNDS // _CHECKPOINT_EACH


async def _hear(owner: Started, word: str, committed: Counter[int]) -> bool:
    """Wait for a line of one kind, and note what was committed before; False at the end."""
    assert owner.process.stdout is not None
    while line := (await owner.process.stdout.readline()).decode():
        said = line.split()
        if line.endswith("\n") and said[0] == "committed":
            committed[int(said[1])] = max(committed[int(said[1])], int(said[2]))
        if line.endswith("\n") and said[0] == word:
            return True
    return False


async def _check_state(folder: Path) -> None:
    """What the killed process left in its state is what the log says up to its position."""
    workers = ThreadWorkers(asyncio.get_running_loop())
    state = await open_rocks(folder / FOLDER / DEFAULT, workers)
    position, found = state.position, state.scan_rows(b"\x01", None, 1_000_000)
    await state.close()
    async with engine.open(folder) as client:
        checkpoints = await CheckpointList(client.store, DEFAULT, client.time).get()
        kept = [record.position for record in checkpoints.kept]
        log = ReplicatedLog(client, log_of(DEFAULT))
        at, *then = await _rows_at(log, [position, *kept])
        assert found == at
        for record, rows in zip(checkpoints.kept, then, strict=True):
            manifest = decode_manifest(await read_blob(client, record.locator))
            for table, pages in zip(manifest.tables, manifest.pages, strict=True):
                assert pages.rows == sum(key.startswith(table.prefix) for key, _ in rows)
                for page in pages.pages:
                    batch = decode_page(table, *await read_page(client, page))
                    assert batch.num_rows == page.rows
    await workers.close()


async def _rows_at(
    log: ReplicatedLog, positions: Sequence[Position]
) -> list[list[tuple[bytes, bytes]]]:
    """The rows that the log's commands make, up to each of some positions."""
    rows, machine = MemoryState(), HerdMachine()
    found: dict[Position, list[tuple[bytes, bytes]]] = {}
    ahead = sorted(set(positions))

    def take(before: Position | None) -> None:
        while ahead and (before is None or ahead[0] < before):
            found[ahead.pop(0)] = rows.scan(b"\x01", None, 1_000_000)

    if ahead[-1] > START:
        async for where, command in read_commands(log, START, ahead[-1]):
            take(where)
            machine.apply(rows, encode_command(command), where)
    take(None)
    return [found[position] for position in positions]


async def _check_tables(folder: Path, committed: Counter[int]) -> None:
    async with open_folder(folder) as herd:
        totals, steps = await open_tables(herd)
        counted: Counter[int] = Counter()
        async for row in steps.scan():
            counted[row["caller"]] += 1
            assert row["sequence"] == counted[row["caller"]], "a step is missing"
            assert row["text"] == text_of(row["caller"], row["sequence"])
        for caller in range(CALLERS):
            total = await totals.get(caller)
            count = 0 if total is None else total["count"]
            assert count == counted[caller], "half a transaction"
            assert count >= committed[caller], "a committed transaction is lost"
