"""Checkpoints of a tablespace, taken and read beside everything else, in some disturbed runs.

The product's checkpointer runs unchanged; the state's copy is in memory, and the pages are made in
the leader's own process.

Invariants checked:
- A checkpoint shows all tables as of one moment: the sum of all accounts is right in it.
- What is pinned stays: it can be read as long as its pin lasts, and is always the same.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from engine.errors import CannotRead, EngineError, NotFound, Unavailable
from engine.ledger.client import LedgerClient
from engine.ledger.settings import ClientSettings
from herd.checkpoint import building
from herd.checkpoint.blobs import read_blob, read_page
from herd.checkpoint.child import ReadPage, answer
from herd.checkpoint.manifest import (
    Manifest,
    ManifestRecord,
    Page,
    decode_manifest,
    encode_manifest,
)
from herd.checkpoint.order import Order
from herd.checkpoint.pages import decode_page
from herd.checkpoint.record import CheckpointList
from herd.checkpoint.taking import Checkpointer
from herd.errors import Error
from tests.simulation.disk import SimDisk
from tests.simulation.disturbances import OLDER, CallCancelled
from tests.simulation.herd_nodes import ACCOUNTS, BALANCE, SPACE, HerdNode
from tests.simulation.nodes import ClientNode, World
from tests.simulation.oracles import Violation
from tests.simulation.state import SimCopy
from tests.simulation.workers import SimWorkers

SHARE: Final = 0.4
_PAGE_ROWS: Final = 4
_PINS_S: Final = (3.0, 12.0, 10_000.0)
_PEACE_S_MAX: Final = 60.0

Content = dict[str, list[list[object]]]


@contextmanager
def copies_in_memory() -> Iterator[None]:
    """Pages are made of what simulated states copy."""
    with patch.object(building, "RocksCopy", SimCopy):
        yield


class Checkpoints:
    """Takes, pins and reads checkpoints."""

    def __init__(self, world: World, seed: int) -> None:
        rng = random.Random(f"{seed}:checkpoints")
        self.on = world.disturbances.on and seed not in OLDER and rng.random() < SHARE
        if self.on:
            # Pins last by wall clocks, so these must not be further apart than is allowed.
            world.walls_differ = True
        self.stopped = False
        self._world = world
        self._rng = rng
        self._pause_s = rng.choice([0.3, 1.0, 3.0])
        self._build_s = rng.choice([0.0, 0.1, 1.0])
        self._taking: dict[str, tuple[Checkpointer, int]] = {}
        self._pinned: dict[str, tuple[ManifestRecord, float]] = {}
        self._contents: dict[ManifestRecord, Content] = {}
        self._folder: Path | None = None

    def start(self, nodes: Sequence[HerdNode]) -> None:
        """Take and read checkpoints from now on, until `stopped`."""
        if not self.on:
            return
        self._folder = Path(tempfile.mkdtemp())
        loop = self._world.loop
        loop.spawn(loop.world, self._take_again(nodes), "checkpoints")
        reader = ClientNode(self._world, "archivist", ClientSettings(), lambda node: None)
        loop.spawn(reader.process, self._read_again(reader), "archivist work")

    def end(self) -> None:
        """Remove what lies on a real disk."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # Taking

    async def _take_again(self, nodes: Sequence[HerdNode]) -> None:
        loop = self._world.loop
        while not self.stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            leads = [node for node in nodes if node.up and node.space and node.space.term]
            if leads and not self.stopped:
                node = self._rng.choice(leads)
                loop.spawn(node.process, self._take(node), f"{node.name} checkpoint")

    async def _take(self, node: HerdNode) -> None:
        """As the duty of a leader does: sweep once a term, then take one."""
        space = node.space
        if space is None or not space.term:
            return
        term, who = space.term, node.process.name
        if who not in self._taking:
            # One for all of a process: they take turns in its folder.
            self._taking[who] = self._checkpointer(node), 0
        checkpointer, swept = self._taking[who]
        try:
            if swept != term:
                await self._world.disturbances.cancellable(checkpointer.sweep(term), "sweep")
            self._taking[who] = checkpointer, term
            taking = checkpointer.take(term)
            record = await self._world.disturbances.cancellable(taking, "checkpoint")
        except (CallCancelled, EngineError, Error) as error:
            self._world.trace.event("no checkpoint", node.name, type(error).__name__)
            return
        self._world.trace.event("checkpoint", node.name, record.number, *record.position)
        self._world.trace.counts["checkpoints"] += 1

    def _checkpointer(self, node: HerdNode) -> Checkpointer:
        assert self._folder is not None and node._state is not None
        rng = random.Random(f"{self._rng.random()} workers")
        workers = SimWorkers(self._world.loop, node.process, SimDisk(rng), rng)
        folder = self._folder / node.process.name.replace("#", "-")
        return Checkpointer(
            *(node.client, SPACE, node._state, workers, folder),
            page_rows=_PAGE_ROWS,
            build=self._build,
        )

    async def _build(self, order: Order, read: ReadPage) -> bytes:
        """In this process, with time before and after it in which anything may happen."""
        await asyncio.sleep(self._build_s * self._rng.random())
        steps, told = building.build(order), None
        manifest: Manifest | None = None
        while manifest is None:
            try:
                told = await answer(steps.send(told), read)
            except StopIteration as end:
                manifest = end.value
        await asyncio.sleep(self._build_s * self._rng.random())
        return encode_manifest(manifest)

    # Reading

    async def _read_again(self, node: ClientNode) -> None:
        while not self.stopped:
            await asyncio.sleep(self._rng.expovariate(1 / self._pause_s))
            try:
                await self._pin(node)
                for name in list(self._pinned):
                    await self._read(node.client, name)
            except (Unavailable, CannotRead) as error:
                self._world.trace.event("checkpoint not read", type(error).__name__)

    async def _pin(self, node: ClientNode) -> None:
        checkpoints = CheckpointList(node.client.store, SPACE, node.client.time)
        if len(self._pinned) > 3:
            await checkpoints.unpin(self._forgotten())
        name = f"pin {self._rng.getrandbits(32)}"
        lifetime_s = self._rng.choice(_PINS_S)
        until_s = self._world.loop.now + lifetime_s
        try:
            pinning = checkpoints.pin(name, None, int(lifetime_s * 1_000))
            record = await self._world.disturbances.cancellable(pinning, "pin")
        except (CallCancelled, NotFound):
            return
        self._pinned[name] = record, until_s

    def _forgotten(self) -> str:
        """Forget a pin and return its name: nobody reads it any more."""
        name = self._rng.choice(list(self._pinned))
        del self._pinned[name]
        return name

    async def _read(self, client: LedgerClient, name: str) -> None:
        """Read a checkpoint whole, and compare it with what it was."""
        record, until_s = self._pinned[name]
        try:
            found = await _content(client, record)
        except NotFound as error:
            if self._world.loop.now < until_s:
                raise Violation(f"checkpoint {record} is pinned and gone: {error}") from error
            self._pinned.pop(name, None)
            return
        if self._contents.setdefault(record, found) != found:
            raise Violation(f"checkpoint {record.number} has changed: {found}")
        _check_sum(record, found)
        self._world.trace.counts["checkpoints read"] += 1

    # The verdict

    async def judge(self, client: LedgerClient) -> None:
        """In peace each one that is pinned can be read."""
        for name in list(self._pinned):
            deadline_s = self._world.loop.now + _PEACE_S_MAX
            while name in self._pinned:
                try:
                    await self._read(client, name)
                    break
                except (Unavailable, CannotRead) as error:
                    if self._world.loop.now > deadline_s:
                        raise Violation(
                            f"{self._pinned[name]} cannot be read: {error!r}"
                        ) from error
                    await asyncio.sleep(1.0)


async def _content(client: LedgerClient, record: ManifestRecord) -> Content:
    manifest = decode_manifest(await read_blob(client, record.locator))
    tables = {table.id: table for table in manifest.tables}
    found: Content = {}
    for one in manifest.pages:
        table, rows = tables[one.table_id], []
        pages: Sequence[Page] = one.pages
        for page in pages:
            batch = decode_page(table, *await read_page(client, page))
            columns = [batch.column(column.name).to_pylist() for column in table.columns]
            rows += [list(row) for row in zip(*columns, strict=True)]
        if len(rows) != one.rows:
            raise Violation(f"checkpoint {record.number}: {len(rows)} rows, not {one.rows}")
        found[table.name] = rows
    return found


def _check_sum(record: ManifestRecord, found: Content) -> None:
    accounts = found.get("accounts", [])
    total = sum(int(str(row[1])) for row in accounts)
    if len(accounts) != ACCOUNTS or total != ACCOUNTS * BALANCE:
        raise Violation(f"checkpoint {record.number}: the sum is {total}: {accounts}")
