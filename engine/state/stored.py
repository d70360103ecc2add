"""A state in a storage: changes gather in memory and a thread of its own writes them.

    uncommitted    what has changed since the last commit
    gathered       commits that nobody has begun to write; the newest change of a key is kept
    sealed ones    on their way into the storage, oldest last
    recent ones    what was written lately, for those who ask for one row
    the storage    everything else

A read looks through them in this order. Nothing is written on the event loop.

Invariants:
- What is written together ends with a commit and carries its position: a crash loses whole commits.
- An overlay is dropped when the storage has it, not before: a read never falls between the two.
- A snapshot is a view of the storage and the overlays that it may lack, sealed so that they stay.
- Writes, flushes and the end are the work of one thread, in the order in which they were asked for.
- The first failure is the last one: nothing is written after it, and every call says so.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from engine.errors import StateFailed
from engine.limits import KIB, MIB
from engine.log.position import START, Position
from engine.ports.workers import Workers
from engine.state.contract import Row
from engine.state.cutting import (
    FIRST_ROW,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    after,
    cut_page,
    misfit,
)
from engine.state.overlay import PART_ROWS_MAX, Overlay, laid_over
from engine.state.recent import Recent
from engine.state.storage import Change, Mark, Storage, View

_ABSENT: Final = bytes(bytearray(b"absent"))
"""Nobody else has this very object."""


@dataclass(frozen=True)
class StateSettings:
    """When changes that have gathered are written, what comes first; and RocksDB's memory."""

    gather_bytes: int = 512 * KIB
    gather_ms: int = 50
    cache_bytes: int = 32 * MIB
    """For blocks of rows that were read. Beside it up to 128 MiB hold what was written lately."""
    recent_bytes: int = 8 * MIB
    """For rows written lately, as they are: they are found without a look into the storage."""


class _Job(NamedTuple):
    """Something for the thread to do, and who waits for it."""

    writes: Sequence[tuple[Iterable[Change], Mark]] = ()
    position: Position | None = None
    """Where the storage stands afterwards, if that changes."""
    wipe: bool = False
    flush: bool = False
    copy_to: Path | None = None
    overlay: Overlay | None = None
    done: "asyncio.Future[None] | None" = None


class StoredState:
    """A `State` that is as durable as its storage. Made and used on one event loop."""

    def __init__(
        self, storage: Storage, workers: Workers, settings: StateSettings | None = None
    ) -> None:
        mark = storage.mark()
        assert not mark.restoring, "half a restoration is wiped when a storage is opened"
        self._storage = storage
        self._storage_get = storage.get
        self._workers = workers
        self._settings = settings or StateSettings()
        self._position = self._written = self._durable = mark.position
        self._uncommitted = Overlay()
        self._gathered = Overlay()
        self._sealed: list[Overlay] = []
        self._recent = Recent(self._settings.recent_bytes)
        self._overlays: tuple[Overlay, ...] = ()
        self._layers: tuple[dict[bytes, bytes | None], ...] = ()
        self._unwritten_bytes = 0
        self._restoring = False
        self._closed = False
        self._failure: BaseException | None = None
        self._thread_failed = False
        self._snapshots: list[StoredSnapshot] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._batcher = workers.batcher("state", self._work, self._done)
        self._relayer()

    @property
    def position(self) -> Position:
        """The position of the newest commit; START when new or cleared."""
        return self._position

    @property
    def durable(self) -> Position:
        """The position that would be found, or passed, if the machine stopped now."""
        return self._durable

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of committed changes that the storage does not have; each change counts."""
        return self._unwritten_bytes

    def check(self) -> None:
        """Raise `StateFailed` if a write or a read has failed, or the state is closed."""
        if self._failure is not None:
            raise self._failed() from self._failure
        if self._closed:
            raise StateFailed(f"the state in {self._storage.name} is closed")

    def get(self, key: bytes) -> bytes | None:
        """A value, or None if there is none. Raises `StateFailed` if that cannot be told."""
        # One look at each layer: other threads may read while this one goes on.
        for layer in self._layers:
            found = layer.get(key, _ABSENT)
            if found is not _ABSENT:
                return found
        try:
            return self._storage_get(key)
        except Exception as error:
            raise self._unreadable(error) from error

    def get_row(self, key: bytes) -> bytes | None:
        """As `get`, without the keys that begin with a zero byte. Raises `StateFailed`."""
        if key < FIRST_ROW:
            return None
        # As in `get`: machines ask this for every command, and a call more would be felt.
        for layer in self._layers:
            found = layer.get(key, _ABSENT)
            if found is not _ABSENT:
                return found
        try:
            return self._storage_get(key)
        except Exception as error:
            raise self._unreadable(error) from error

    def scan_rows(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """As `scan`, without the keys that begin with a zero byte. Raises `StateFailed`."""
        return self.scan(max(first, FIRST_ROW), end, limit)

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, in order.

        Raises `StateFailed` if they cannot be told.
        """
        try:
            below = self._storage.rows(first, end)
            return list(islice(laid_over(below, self._overlays, first, end), limit))
        except Exception as error:
            raise self._unreadable(error) from error

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value. Raises `InvalidRequest` for a row that is too large."""
        if not 0 < len(key) <= KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX:
            raise misfit(key, value)
        self._uncommitted.rows[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._uncommitted.rows[key] = None

    def commit(self, position: Position) -> None:
        """Everything changed since the last commit, and this position, belong together.

        Raises `StateFailed`.
        """
        self.check()
        assert not self._restoring and position >= self._position
        gathered = self._gathered
        self._unwritten_bytes += gathered.take(self._uncommitted.rows, position)
        self._uncommitted.clear()
        self._position = position
        if gathered.size_bytes >= self._settings.gather_bytes and not self._sealed:
            self._seal()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._settings.gather_ms / 1000, self._due)

    def snapshot(self) -> "StoredSnapshot":
        """All rows at the newest commit. Nothing may be uncommitted. Raises `StateFailed`."""
        self.check()
        assert not self._uncommitted.rows, "a snapshot is of a commit"
        assert not self._restoring
        self._seal()
        try:
            view = self._storage.view()
        except Exception as error:
            raise self._unreadable(error) from error
        snapshot = StoredSnapshot(self, self._position, view, tuple(self._sealed))
        self._snapshots.append(snapshot)
        return snapshot

    async def flush(self) -> Position:
        """Make every commit so far durable; returns the position that is. Raises `StateFailed`."""
        self.check()
        assert not self._restoring
        if self._durable < self._position:
            self._seal()
            await self._do(_Job(flush=True))
        return self._durable

    async def copy_to(self, path: Path) -> Position:
        """Make a folder that `open_copy` reads: every commit so far, and perhaps some later ones.

        It is made of links to files that never change. Raises `StateFailed` if there is none.
        """
        self.check()
        assert not self._restoring
        self._seal()
        await self._do(_Job(flush=True, copy_to=path))
        if not await self._workers.run(path.exists):
            raise StateFailed(f"the state in {self._storage.name} could not be copied to {path}")
        return self._durable

    async def clear(self) -> None:
        """Remove everything; the position is START, durably. Nothing else may be called meanwhile.

        Raises `StateFailed`.
        """
        self.check()
        self._stop_timer()
        self._uncommitted.clear()
        self._unwritten_bytes -= self._gathered.size_bytes
        self._gathered = Overlay()
        await self._do(_Job(wipe=True, flush=True, position=START))
        self._restoring = False
        self._relayer()

    async def restore(self, rows: Sequence[Row]) -> None:
        """Add rows of a snapshot after `clear`. Raises `StateFailed`."""
        self.check()
        assert self._position == START and not self._sealed and not self._uncommitted.rows
        self._restoring = True
        mark = Mark(START, True)
        starts = range(0, len(rows), PART_ROWS_MAX)
        await self._do(_Job([(rows[start : start + PART_ROWS_MAX], mark) for start in starts]))

    async def restored(self, position: Position) -> None:
        """The rows are whole: this is the state at `position`, durably. Raises `StateFailed`."""
        self.check()
        assert self._position == START and not self._sealed
        await self._do(_Job([((), Mark(position, False))], position, flush=True))
        self._position = position
        self._restoring = False

    async def close(self) -> None:
        """Flush and close; what is not committed is dropped. May be called twice.

        Raises `StateFailed`; the storage is closed all the same.
        """
        if self._closed:
            return
        try:
            if not self._restoring:
                await self.flush()
        finally:
            self._closed = True
            self._stop_timer()
            await self._batcher.close()
            for snapshot in list(self._snapshots):
                snapshot.close()
            try:
                await self._workers.run(self._storage.close)
            except Exception as error:
                # For example on a full disk. Whatever is missing in the storage is in the log.
                raise self._unreadable(error) from error

    # The loop's side of writing

    def _due(self) -> None:
        self._timer = None
        if not self._sealed:
            self._seal()

    def _seal(self) -> None:
        """Begin to write what has gathered."""
        self._stop_timer()
        overlay = self._gathered
        if overlay.position <= self._written and not overlay.rows:
            return
        overlay.sealed = True
        self._sealed.insert(0, overlay)
        self._gathered = Overlay()
        self._relayer()
        writes = [(part.rows.items(), Mark(part.position, False)) for part in overlay.parts]
        self._batcher.put(_Job(writes, overlay.position, overlay=overlay))

    def _relayer(self) -> None:
        """Which overlays a read looks through, the newest first."""
        self._overlays = (self._uncommitted, self._gathered, *self._sealed)
        rows = [overlay.rows for overlay in self._overlays]
        self._layers = (*rows, *self._recent.layers)

    async def _do(self, job: _Job) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        self._batcher.put(job._replace(done=done))
        await done

    def _work(self, jobs: list[_Job]) -> None:
        """In the thread."""
        if self._thread_failed:
            raise StateFailed("a write before this one failed")
        try:
            for job in jobs:
                if job.wipe:
                    self._storage.wipe()
                for changes, mark in job.writes:
                    self._storage.write(changes, mark)
                if job.flush:
                    self._storage.flush()
        except BaseException:
            self._thread_failed = True
            raise
        for job in jobs:
            if job.copy_to is not None:
                # Its failure is no failure of the state; whoever asked finds no copy.
                with contextlib.suppress(Exception):
                    self._storage.copy_to(job.copy_to)

    def _done(self, jobs: list[_Job], result: None, error: BaseException | None) -> None:
        if error is not None and self._failure is None:
            self._failure = error
        for job in jobs:
            if error is None:
                self._carried_out(job)
            if job.done is not None and not job.done.done():
                if error is None:
                    job.done.set_result(None)
                else:
                    job.done.set_exception(self._failed())
        if error is None and not self._closed:
            self._relayer()
            if self._gathered.size_bytes >= self._settings.gather_bytes and not self._sealed:
                self._seal()
            elif self._gathered.position > self._written and self._timer is None:
                self._timer = self._loop.call_later(self._settings.gather_ms / 1000, self._due)

    def _carried_out(self, job: _Job) -> None:
        if job.overlay is not None:
            dropped = self._sealed.pop()
            assert dropped is job.overlay, "overlays are written in their order"
            self._unwritten_bytes -= dropped.size_bytes
            self._recent.take(dropped.rows, dropped.size_bytes)
        if job.position is not None:
            self._written = job.position
        if job.wipe:
            self._position = START
            self._recent.clear()
        if job.flush:
            self._durable = self._written

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Failures

    def _failed(self) -> StateFailed:
        return StateFailed(f"the state in {self._storage.name} cannot be used: {self._failure}")

    def _unreadable(self, error: Exception) -> StateFailed:
        if self._failure is None:
            self._failure = error
        return self._failed()

    def _let_go(self, snapshot: "StoredSnapshot") -> None:
        self._snapshots.remove(snapshot)


class StoredSnapshot:
    """All rows of a `StoredState` at one commit."""

    def __init__(
        self, state: StoredState, position: Position, view: View, overlays: tuple[Overlay, ...]
    ) -> None:
        self._state = state
        self._position = position
        self._view: View | None = view
        self._overlays = overlays

    @property
    def position(self) -> Position:
        """The commit that it is of."""
        return self._position

    def page(self, above: bytes | None, bytes_max: int) -> list[Row]:
        """The next rows with keys over `above`, in order; see `Snapshot.page`.

        Raises `StateFailed` if they cannot be told.
        """
        view = self._view
        if view is None:
            raise StateFailed("the snapshot is closed")
        first = after(above)
        try:
            rows = laid_over(view.rows(first, None), self._overlays, first, None)
            return cut_page(rows, bytes_max)
        except Exception as error:
            raise StateFailed(f"the snapshot cannot be read: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        """A value as it was, or None if there was none. Raises `StateFailed`."""
        found = self.scan(key, key + b"\0", 1)
        return found[0][1] if found else None

    def scan(self, first: bytes, end: bytes | None = None, limit: int = 1_000) -> list[Row]:
        """At most `limit` rows with keys from `first` on and under `end`, as they were.

        Raises `StateFailed` if they cannot be told.
        """
        view = self._view
        if view is None:
            raise StateFailed("the snapshot is closed")
        first = max(first, FIRST_ROW)
        try:
            below = view.rows(first, end)
            return list(islice(laid_over(below, self._overlays, first, end), limit))
        except Exception as error:
            raise StateFailed(f"the snapshot cannot be read: {error}") from error

    def close(self) -> None:
        """Let go of it. May be called twice."""
        if self._view is not None:
            self._view.close()
            self._view = None
            self._overlays = ()
            self._state._let_go(self)
