"""Tasks that bring their own code: code pools, each in processes of its own.

A code pool is an archive, a zip or a pure wheel, that the broker keeps. Its tasks name what they
call as `module:function`. A worker takes such tasks only if it was told to: then `ANY_MODULE` is
among its types.

Invariants:
- Code of one pool never runs in a process that has seen another one's.
- A pool's archive is fetched once, and forgotten when no task of it came for its time: a name is
  one version of the code.
- There are never more processes than settings say: a pool has one, and an idle one makes room.
- A task whose code cannot be had fails in words; one that only did not get it in time goes back.
"""

import asyncio
import io
import zipfile
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import BrokerError, BrokerUnavailable, SessionLost
from broker.worker.pool import Pool, PoolSettings

Fetch = Callable[[str], Awaitable[bytes]]
DoneWith = Callable[[list[Completion]], None]


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """Where archives lie while they are used, how long without a task, how long a fetch may take.

    `pool` is what all processes together may be; each code pool has one. Times in milliseconds.
    """

    folder: Path
    pool: PoolSettings
    keep_ms: int = 600_000
    fetch_timeout_ms: int = 10_000


_LOOKS_A_TIME: Final = 4


class _Loaded:
    """One code pool: its processes once it is loaded, and what waits until then."""

    def __init__(self, used_s: float) -> None:
        self.pool: Pool | None = None
        self.file: Path | None = None
        self.waiting: dict[Attempt, Run] = {}
        self.loading: asyncio.Task[None] | None = None
        self.used_s = used_s


class CodePlaces:
    """Places for tasks with and without code of their own. `done` hears of all ends."""

    def __init__(self, plain: Pool, settings: CodeSettings, fetch: Fetch, done: DoneWith) -> None:
        self._plain = plain
        self._settings = settings
        self._fetch = fetch
        self._done = done
        self._loaded: dict[str, _Loaded] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._number = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()
        self._sweeping = asyncio.create_task(self._sweep())

    @property
    def processes(self) -> int:
        """How many processes there are for tasks without code of their own."""
        return self._plain.processes

    @property
    def running(self) -> list[Attempt]:
        """What has not ended."""
        found = self._plain.running
        for each in self._loaded.values():
            found += each.waiting
            found += each.pool.running if each.pool is not None else []
        return found

    def __len__(self) -> int:
        return len(self._plain) + sum(map(_count, self._loaded.values()))

    def run(self, runs: list[Run]) -> None:
        """Run these; each is answered by a completion."""
        plain = [run for run in runs if not run.codepool]
        if plain:
            self._plain.run(plain)
        for run in runs:
            if run.codepool:
                self._empty.clear()
                self._run(run)

    def interrupt(self, attempts: Iterable[Attempt], reason: str) -> None:
        """End these, each of which is answered by a completion."""
        attempts = list(attempts)
        self._plain.interrupt(attempts, reason)
        for each in self._loaded.values():
            if each.pool is not None:
                each.pool.interrupt(attempts, reason)
            stopped = [attempt for attempt in attempts if each.waiting.pop(attempt, None)]
            self._tell([Completion(*one, Ended.INTERRUPTED, error=reason) for one in stopped])

    def give_back(self) -> None:
        """Begin nothing more of what has not begun: it is completed as handed back."""
        self._plain.give_back()
        for each in self._loaded.values():
            self._hand_back(each)
            if each.pool is not None:
                each.pool.give_back()

    async def end_all(self) -> None:
        """End everything that runs, for no fault of its own; returns when nothing runs."""
        for each in self._loaded.values():
            self._hand_back(each)
        pools = [each.pool for each in self._loaded.values() if each.pool is not None]
        await asyncio.gather(self._plain.end_all(), *(pool.end_all() for pool in pools))
        await self.idle()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while len(self):
            await self._plain.idle()
            await self._empty.wait()

    async def close(self) -> None:
        """End everything; the plain pool is its owner's to close."""
        self._sweeping.cancel()
        await asyncio.gather(self._sweeping, return_exceptions=True)
        for each in list(self._loaded.values()):
            await self._end(each)
        self._loaded.clear()
        await asyncio.gather(*self._leaving)

    # Inside

    def _run(self, run: Run) -> None:
        each = self._loaded.get(run.codepool)
        if each is None:
            if len(self._loaded) >= self._settings.pool.processes:
                if not self._make_room():
                    self._tell([Completion(run.id, run.attempt, Ended.HANDED_BACK)])
                    return
            each = self._loaded[run.codepool] = _Loaded(self._loop.time())
            each.loading = asyncio.create_task(self._load(run.codepool, each))
        each.used_s = self._loop.time()
        if each.pool is not None:
            each.pool.run([run])
        else:
            each.waiting[run.id, run.attempt] = run

    def _make_room(self) -> bool:
        """Let the pool go that was idle for longest; whether there was one."""
        idle = [
            name
            for name, each in self._loaded.items()
            if each.pool is not None and not _count(each)
        ]
        if not idle:
            return False
        name = min(idle, key=lambda each: self._loaded[each].used_s)
        leaving = asyncio.create_task(self._end(self._loaded.pop(name)))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return True

    async def _load(self, name: str, each: _Loaded) -> None:
        pool = None
        try:
            async with asyncio.timeout(self._settings.fetch_timeout_ms / 1000):
                archive = await self._fetch(name)
            if not zipfile.is_zipfile(io.BytesIO(archive)):
                raise BrokerError("it is no zip archive and no wheel")
            self._number += 1
            each.file = self._settings.folder / f"code-{self._number}.zip"
            await self._loop.run_in_executor(None, each.file.write_bytes, archive)
            settings = replace(
                self._settings.pool,
                archives=(str(each.file),),
                any_function=True,
                modules=(),
                processes=1,
            )
            pool = Pool(settings, self._ended, self._plain.watch)
            await pool.start()
        except (SessionLost, BrokerUnavailable, TimeoutError):
            self._forget(name, each)
            self._hand_back(each)
        except (BrokerError, OSError) as error:
            self._forget(name, each)
            text = f"the code pool {name} cannot be loaded: {error}"
            self._end_waiting(each, Ended.FAILED, text)
        else:
            each.pool = pool
            pool = None
            runs, each.waiting = list(each.waiting.values()), {}
            if runs:
                each.pool.run(runs)
        finally:
            if pool is not None:
                await pool.close()

    def _forget(self, name: str, each: _Loaded) -> None:
        if self._loaded.get(name) is each:
            del self._loaded[name]
        if each.file is not None:
            each.file.unlink(missing_ok=True)

    def _hand_back(self, each: _Loaded) -> None:
        self._end_waiting(each, Ended.HANDED_BACK, "")

    def _end_waiting(self, each: _Loaded, ended: Ended, text: str) -> None:
        waiting, each.waiting = each.waiting, {}
        self._tell([Completion(*attempt, ended, error=text) for attempt in waiting])

    def _ended(self, completions: list[Completion]) -> None:
        self._tell(completions)

    def _tell(self, completions: list[Completion]) -> None:
        if not any(map(_count, self._loaded.values())):
            self._empty.set()
        if completions:
            self._done(completions)

    async def _sweep(self) -> None:
        """Forget pools that nobody needed for their time."""
        keep_s = self._settings.keep_ms / 1000
        while True:
            await asyncio.sleep(keep_s / _LOOKS_A_TIME)
            for name, each in list(self._loaded.items()):
                idle = not _count(each) and each.pool is not None
                if idle and self._loop.time() - each.used_s > keep_s:
                    await self._end(self._loaded.pop(name))

    async def _end(self, each: _Loaded) -> None:
        if each.loading is not None and not each.loading.done():
            each.loading.cancel()
            await asyncio.gather(each.loading, return_exceptions=True)
        self._hand_back(each)
        if each.pool is not None:
            await each.pool.close()
        if each.file is not None:
            each.file.unlink(missing_ok=True)


def _count(each: _Loaded) -> int:
    return len(each.waiting) + (len(each.pool) if each.pool is not None else 0)
