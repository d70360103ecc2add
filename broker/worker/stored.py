"""A worker's places for payloads and results that are in a store.

The worker's process fetches payloads and stores results: users' code never meets the store.

Invariants:
- An attempt is among those that run from its assignment on until its end was told, whether its
  payload is on the way here, it runs, or its result is on the way to the store.
- An attempt whose payload cannot be had now is handed back; one whose payload has gone has failed.
- A result that is too big without a store, or cannot be stored, is a failure in words.
- So many bytes of fetched payloads are held at most, or one alone.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from msgspec.structs import replace

from broker.connection import Attempt, Completion, Ended, Run
from broker.errors import BrokerError, BrokerUnavailable, PayloadMissing
from broker.payloads import kept
from broker.ports import PayloadStore
from broker.task import PAYLOAD_BYTES_MAX
from broker.worker.worker import Places

_log = logging.getLogger(__name__)
_HELD_BYTES_MAX: Final = 256 * 1024 * 1024
_AT_ONCE: Final = 4
_TRIES: Final = 5
_PAUSE_S: Final = 0.2
Done = Callable[[list[Completion]], None]


class StoredPlaces:
    """Wraps other places. `done` is to be told what ended in those."""

    def __init__(self, inner: Places, store: PayloadStore | None, told: Done) -> None:
        self._inner = inner
        self._store = store
        self._told = told
        self._fetching: dict[Attempt, asyncio.Task[None]] = {}
        self._storing: dict[Attempt, asyncio.Task[None]] = {}
        self._held: dict[Attempt, int] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._room = asyncio.Event()

    @property
    def running(self) -> list[Attempt]:
        """See `Places`."""
        return [*self._fetching, *self._inner.running, *self._storing]

    def __len__(self) -> int:
        return len(self._fetching) + len(self._inner) + len(self._storing)

    def run(self, runs: list[Run]) -> None:
        """See `Places`."""
        if not any(run.payload_object for run in runs):
            self._inner.run(runs)
            return
        here = [run for run in runs if not run.payload_object]
        for run in runs:
            if run.payload_object:
                attempt = (run.id, run.attempt)
                self._begin(self._fetching, attempt, self._fetch(run))
        if here:
            self._inner.run(here)

    def done(self, completions: list[Completion]) -> None:
        """Hear of attempts that ended, of which some have results to store."""
        if self._held:
            self._free(completions)
        big = [each for each in completions if len(each.result) > PAYLOAD_BYTES_MAX]
        for each in big:
            self._begin(self._storing, (each.id, each.attempt), self._keep(each))
        if len(big) < len(completions):
            self._told(
                completions if not big else [each for each in completions if each not in big]
            )

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        """See `Places`. A result on its way to the store is told as it is."""
        for attempt in attempts:
            fetching = self._fetching.pop(attempt, None)
            if fetching is not None:
                fetching.cancel()
                ended = Completion(attempt[0], attempt[1], Ended.INTERRUPTED, error=reason)
                self._told([ended])
        self._inner.interrupt(attempts, reason)

    def give_back(self) -> None:
        """See `Places`."""
        fetching, self._fetching = self._fetching, {}
        for task in fetching.values():
            task.cancel()
        self._hand_back(list(fetching))
        self._inner.give_back()

    async def end_all(self) -> None:
        """See `Places`."""
        self.give_back()
        await self._inner.end_all()
        await self._stored()

    async def idle(self) -> None:
        """See `Places`."""
        await self._inner.idle()
        while self._fetching or self._storing:
            await asyncio.wait((*self._fetching.values(), *self._storing.values()))
            await self._inner.idle()

    async def close(self) -> None:
        """Leave what is on its way. May be called twice."""
        tasks = (*self._fetching.values(), *self._storing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Inside

    def _begin(
        self,
        among: dict[Attempt, asyncio.Task[None]],
        attempt: Attempt,
        work: Coroutine[Any, Any, None],
    ) -> None:
        among[attempt] = asyncio.create_task(work)

    async def _stored(self) -> None:
        while self._storing:
            await asyncio.wait(self._storing.values())

    def _hand_back(self, attempts: list[Attempt]) -> None:
        ended = [Completion(*attempt, Ended.HANDED_BACK) for attempt in attempts]
        if ended:
            self._told(ended)

    def _free(self, completions: list[Completion]) -> None:
        for each in completions:
            self._held.pop((each.id, each.attempt), None)
        self._room.set()

    async def _fetch(self, run: Run) -> None:
        """Bring the payload, then run it."""
        attempt = (run.id, run.attempt)
        async with self._turns:
            while sum(self._held.values()) >= _HELD_BYTES_MAX:
                self._room.clear()
                await self._room.wait()
            try:
                payload = await self._trying(lambda store: store.get(run.payload_object))
            except PayloadMissing as error:
                self._end(attempt, Ended.FAILED, str(error))
                return
            except BrokerError as error:
                _log.warning("task %d is handed back, its payload is not there: %s", run.id, error)
                self._end(attempt, Ended.HANDED_BACK, "")
                return
        self._held[attempt] = len(payload)
        del self._fetching[attempt]
        self._inner.run([replace(run, payload=payload, payload_object="")])

    def _end(self, attempt: Attempt, ended: Ended, error: str) -> None:
        del self._fetching[attempt]
        failed = ended is Ended.FAILED
        self._told([Completion(*attempt, ended, error=error, no_retry=failed)])

    async def _keep(self, completion: Completion) -> None:
        """Store a result, then tell of it."""
        attempt = (completion.id, completion.attempt)
        try:
            where = await self._trying(lambda store: kept(store, completion.result))
            told = replace(completion, result=where.data, result_object=where.payload_id)
        except BrokerError as error:
            text = f"its result could not be stored: {error}"
            told = replace(completion, ended=Ended.FAILED, result=b"", error=text)
        del self._storing[attempt]
        self._told([told])

    async def _trying(self, work: Callable[[PayloadStore], Coroutine[Any, Any, Any]]) -> Any:
        """What the store answers, if it does within a few tries. Raises `BrokerError`."""
        if self._store is None:
            raise BrokerUnavailable("this worker knows no store of payloads")
        for past in range(_TRIES):
            try:
                return await work(self._store)
            except BrokerError as error:
                if not error.retryable or past == _TRIES - 1:
                    raise
            await asyncio.sleep(_PAUSE_S * 2**past)
        raise AssertionError("the last try returns or raises")
