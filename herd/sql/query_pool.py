"""Which query runs next: a bounded number at a time, and a share for each user.

Invariants:
- No more queries run at once than the settings allow, and no user has more than a share of them.
- A free place goes to the user with the fewest running queries; users who wait take turns.
- When its caller gets a result or an error, a query has ended, in whatever way it ends.
- Closing ends what runs, and waits for that.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from herd import errors
from herd.permits import asked_by
from herd.sql.duck import Work
from herd.sql.query_settings import QuerySettings
from herd.turns import until_done


class QueryRunner(Protocol):
    """Where queries run."""

    async def run(self, work: Work) -> pa.Table:
        """Run one query. Raises the database's errors, and has ended the query when it returns.

        A runner that is cancelled ends the query, and then raises `CancelledError`.
        """
        ...

    async def close(self) -> None:
        """Release all resources. No query runs any more. May be called twice."""
        ...


class QueryPool:
    """Lets queries run in turn. All methods are called on the event loop."""

    def __init__(self, runner: QueryRunner, settings: QuerySettings) -> None:
        self._runner = runner
        self._settings = settings
        self._places = _Places(settings.connections, settings.share, settings.waiting_max)
        share = min(settings.share, max(1, settings.holding // 2))
        self._holding = _Places(settings.holding, share, settings.waiting_max)
        self._jobs: dict[asyncio.Task[pa.Table], object] = {}
        """The queries that run or wait, with their owners."""
        self.busy = 0
        """The number of running queries."""
        self._closed = False

    async def run(
        self, make: Callable[[], Work], *, owner: object = None, holding: bool = False
    ) -> pa.Table:
        """Run a query. `make` is called on the loop when a place is free, just before it starts.

        `owner` identifies it for `end`. `holding`: the caller holds locks, for which others may
        wait. Raises the database's errors. A caller that is cancelled waits for the query's end.
        """
        if self._closed:
            raise errors.InterfaceError("the query engine is closed")
        job = asyncio.get_running_loop().create_task(self._run(make, holding=holding))
        self._jobs[job] = owner
        job.add_done_callback(self._done)
        try:
            return await job
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if asking is not None and asking.cancelling():
                raise
            raise errors.InterfaceError("closed while the query ran") from None
        finally:
            if not job.done():
                job.cancel()
                await until_done(job)

    async def end(self, owner: object) -> None:
        """End the queries of an owner, which starts no more, and wait until they have ended."""
        while jobs := [job for job, whose in self._jobs.items() if whose is owner]:
            await _cancel(jobs)

    async def close(self) -> None:
        """End all queries. May be called twice."""
        self._closed = True
        while self._jobs:
            await _cancel(list(self._jobs))
        await self._runner.close()

    def _done(self, job: "asyncio.Task[pa.Table]") -> None:
        del self._jobs[job]
        if not job.cancelled():
            # The waiting caller may have been cancelled.
            job.exception()

    async def _run(self, make: Callable[[], Work], *, holding: bool) -> pa.Table:
        asker = asked_by.get()
        user = asker.user if asker is not None else ""
        places = self._holding if holding and self._places.full(user) else self._places
        await self._enter(places, user)
        try:
            work = make()
            self.busy += 1
            try:
                return await self._answer(work)
            finally:
                self.busy -= 1
                work.close()
        finally:
            places.leave(user)

    async def _enter(self, places: "_Places", user: str) -> None:
        try:
            async with asyncio.timeout(self._settings.wait_timeout_ms / 1000):
                await places.enter(user)
        except TimeoutError:
            raise errors.OperationalError(
                f"this query has waited {self._settings.wait_timeout_ms} ms for other queries",
                hint="cancel those, or try again",
            ) from None

    async def _answer(self, work: Work) -> pa.Table:
        try:
            async with asyncio.timeout(self._settings.run_timeout_ms / 1000):
                return await self._runner.run(work)
        except TimeoutError:
            raise errors.OperationalError(
                f"the query was ended after {self._settings.run_timeout_ms} ms",
                hint="ask for less at a time",
            ) from None


class _Places:
    """A fixed number of places for queries, and a queue for each user."""

    def __init__(self, count: int, share: int, waiting_max: int) -> None:
        self._free = self._count = count
        self._share = share or count
        self._waiting_max = waiting_max
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By user, in the order in which each began to wait."""

    def full(self, user: str) -> bool:
        """Whether a user would have to wait."""
        # Without users there is nobody to share with.
        share = self._share if user else self._count
        return self._free <= 0 or self._running[user] >= share

    async def enter(self, user: str) -> None:
        """Wait for a place. Raises `OperationalError` if too many of the user's queries wait."""
        if not self.full(user):
            self._take(user)
            return
        queue = self._waiting.setdefault(user, deque())
        if len(queue) >= self._waiting_max:
            raise errors.OperationalError(
                f"{len(queue)} queries of this user wait already", hint="try again later"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(user)
            else:
                self._forget(user, turn)
            raise

    def leave(self, user: str) -> None:
        """Release a place."""
        self._free += 1
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        self._call_next()

    def _take(self, user: str) -> None:
        self._free -= 1
        self._running[user] += 1

    def _call_next(self) -> None:
        while able := [user for user in self._waiting if not self.full(user)]:
            user = min(able, key=lambda each: self._running[each])
            turn = self._waiting[user][0]
            self._forget(user, turn)
            if user in self._waiting:
                # Next time, the other users come first.
                self._waiting[user] = self._waiting.pop(user)
            if not turn.done():
                self._take(user)
                turn.set_result(None)

    def _forget(self, user: str, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(user)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[user]


async def _cancel(jobs: "list[asyncio.Task[pa.Table]]") -> None:
    for job in jobs:
        job.cancel()
    await asyncio.wait(jobs)
