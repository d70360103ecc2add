"""A tablespace whose process ends at any one of its steps, and another that goes on after it.

A step is whatever reaches the outside: an entry that a bookie takes, a change of the metadata
store, a write or a flush of the state. The process may end just before it, or just after.

Invariants:
- What the doomed process does after its end reaches nobody, and no answer reaches it.
- The log and the metadata store outlive it; its state keeps what was flushed, and perhaps more.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from engine.ledger.client import LedgerClient
from engine.metadata.contract import MetadataStore
from engine.state.storage import Change, Mark
from engine.state.stored import StateSettings
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from tests.engine.ledger.scripted import Cluster
from tests.herd.spaces import LOG, REPLICA
from tests.simulation.disk import SimDisk
from tests.simulation.ending import without_collector
from tests.simulation.loop import Process, SimLoop, new_loop
from tests.simulation.state import SimStates, SimStorage
from tests.simulation.virtual import elapse
from tests.simulation.workers import SimWorkers

SETTINGS: Final = HerdSettings(lock_timeout_ms=60_000, erase_rows=3)
_OFTEN: Final = StateSettings(gather_bytes=300, gather_ms=5)
_STEP_S: Final = 0.05
_CHANGING: Final = ("create", "set", "delete", "next_id")

Life = Callable[["Machine", Tablespace], Awaitable[None]]


class Machine:
    """One machine, its processes one after the other, and when the first of them ends."""

    def __init__(self, loop: SimLoop, cluster: Cluster, end_at: int | None, seed: int) -> None:
        self.steps = 0
        self.cluster = cluster
        self._loop = loop
        self._end_at = end_at
        self._counting = False
        self._doomed: Process | None = None
        self._processes: list[Process] = []
        self._rng = random.Random(seed)
        self.states = SimStates(random.Random(seed))
        self.states.storage = _Storage(self)
        self.client: LedgerClient
        self.workers: SimWorkers
        for bookie in cluster.bookies:
            self._watch_bookie(bookie)

    def count(self) -> None:
        """From now on each step counts, and may be the last one."""
        self._counting = True

    def step(self) -> bool:
        """A step is reached; False if the process is over, and nothing of it happens."""
        if self._doomed is None or self._loop.current is not self._doomed:
            return True
        if not self._doomed.alive:
            return False
        if self._counting:
            self.steps += 1
            if self.steps == self._end_at:
                self._loop.kill(self._doomed)
        return self._doomed.alive

    async def live(self, life: Life, *, doomed: bool = False) -> bool:
        """Run a life in a process of its own; False if it ended before its end."""
        process = Process("doomed" if doomed else "next")
        self._processes.append(process)
        self._doomed = process if doomed else None
        self._counting = False
        store: Any = _Store(self, self.cluster.tree.session(), self._loop, process)
        self.client = self.cluster.client(store=store)
        self.client.rng.seed(self._rng.getrandbits(64))
        disk = SimDisk(random.Random(1))
        self.workers = SimWorkers(self._loop, process, disk, random.Random(2))
        task = self._loop.spawn(process, self._run(life), process.name)
        await until(lambda: task.done() or not process.alive)
        if task.done():
            task.result()
            return True
        self.states.crash()
        return False

    async def _run(self, life: Life) -> None:
        space = await Tablespace.open(
            self.client,
            "farm",
            self.states.open(self.workers, _OFTEN),
            settings=SETTINGS,
            replica_settings=REPLICA,
            log_settings=LOG,
        )
        await life(self, space)
        self._counting = False
        await space.close()

    def _watch_bookie(self, bookie: Any) -> None:
        append = bookie.append

        def watched(*arguments: Any, **more: Any) -> None:
            if self.step():
                append(*arguments, **more)
                self.step()

        bookie.append = watched


async def until(reached: Callable[[], bool]) -> None:
    """Let virtual time pass until something is so."""
    while not reached():
        await elapse(_STEP_S)


class _Store:
    """The metadata store as one process reaches it."""

    def __init__(
        self, machine: Machine, store: MetadataStore, loop: SimLoop, process: Process
    ) -> None:
        self._machine = machine
        self._store = store
        self._loop = loop
        self._process = process

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """As the store's; what it tells arrives in the process, if that still is."""

        def tell() -> None:
            self._loop.deliver_at(self._loop.now, self._process, changed)

        return self._store.watch(key, tell)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _CHANGING:
            return found

        async def watched(*arguments: Any, **more: Any) -> Any:
            if not self._machine.step():
                await asyncio.Event().wait()
            answer = await found(*arguments, **more)
            if not self._machine.step():
                await asyncio.Event().wait()
            return answer

        return watched


class _Storage(SimStorage):
    """The state's storage, whose writes and flushes are steps."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def write(self, changes: Any, mark: Mark) -> None:
        kept: list[Change] = list(changes)
        if self._machine.step():
            super().write(kept, mark)
            self._machine.step()

    def flush(self) -> None:
        if self._machine.step():
            super().flush()
            self._machine.step()

    def copy_to(self, path: Path) -> None:
        """For `MemoryCopy`: the rows as they are, in place of a folder."""
        path.mkdir()
        rows = dict(self.rows(b"", None))
        COPIES[str(path)] = (sorted(rows.items()), self.mark())


COPIES: dict[str, tuple[list[tuple[bytes, bytes]], Mark]] = {}
"""By path."""


class MemoryCopy:
    """What `RocksCopy` is, of a simulated storage."""

    def __init__(self, path: Path) -> None:
        self._rows, mark = COPIES.pop(str(path))
        self.position = mark.position

    def get(self, key: bytes) -> bytes | None:
        """A value, or None."""
        return dict(self._rows).get(key)

    def rows(self, first: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
        """Rows in order."""
        return [row for row in self._rows if row[0] >= first and (end is None or row[0] < end)]

    def scan(
        self, first: bytes, end: bytes | None = None, limit: int = 1_000
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` of them."""
        return self.rows(first, end)[:limit]

    def close(self) -> None:
        """Nothing is held."""


def at_every_step(before: Life | None, doomed: Life, after: Life, *, every: int = 1) -> int:
    """End a process at each step of a life (or at every so many), and let another go on.

    `before` lives first, to its end; `doomed` says from where on steps count. Returns how many
    steps there are.
    """
    end_at, whole = 1, False
    # What a process leaves in mid-air must not be finalised in the middle of another run.
    kept: list[object] = []
    logging.disable(logging.CRITICAL)
    try:
        with without_collector():
            while not whole:
                whole = _one(before, doomed, after, end_at, kept)
                end_at += every
            kept.clear()
    finally:
        logging.disable(logging.NOTSET)
    return end_at - every


def _one(before: Life | None, doomed: Life, after: Life, end_at: int, kept: list[object]) -> bool:
    """One run; whether the doomed process came to its end all the same."""
    loop = new_loop(end_at)
    whole = False

    async def script() -> None:
        nonlocal whole
        machine = Machine(loop, await Cluster.of(3), end_at, end_at)
        kept.append(machine)
        if before is not None:
            assert await machine.live(before)
        whole = await machine.live(doomed, doomed=True)
        assert await machine.live(after)

    try:
        loop.run(script(), until_s=2_000.0)
    except Exception as error:
        raise AssertionError(f"after step {end_at}: {error!r}") from error
    finally:
        loop.close()
    return whole
