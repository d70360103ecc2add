"""A worker: its session with the broker, whatever becomes of links and leaders.

Invariants:
- Work goes on while no leader is reached, until half a lease has passed since the sending of the
  last acknowledged heartbeat; then every process is ended, so that nothing runs twice.
- What ended is told until it is acknowledged, over as many links as it takes; then it is forgotten.
- What belongs to another session is dropped before it is looked at.
- After a drain began nothing is begun; `run` returns when all is told, or its time is up.
- A session ends after the broker was heard to send nothing more: what it had sent is handed back.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from broker.connection import (
    Acked,
    Assigned,
    Attempt,
    Completion,
    Config,
    Drain,
    Ended,
    FromBroker,
    Heartbeat,
    Hello,
    Interrupt,
    Refused,
    Run,
    Welcome,
    WorkerLimits,
    WorkerPort,
)
from broker.errors import AccessDenied, BrokerError, SessionLost, StoreClosed
from broker.worker.link import Beat, Link
from engine.ports.clock import Clock

_log = logging.getLogger(__name__)
_HEARTBEATS_A_LEASE: Final = 8
_TRIES_UNTOLD: Final = 3
_SILENCE_MAX: Final = 3 / 8
"""The share of a lease after which a link without answers is given up for another one."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Who a worker is and what it takes. Times in milliseconds.

    `drain_ms` is how long tasks that run may go on after a drain began; `farewell_ms` how long the
    last results may take to be acknowledged.
    """

    worker_id: str
    process_id: str
    location: str = ""
    limits: WorkerLimits = field(default_factory=lambda: WorkerLimits(20))
    drain_ms: int = 30_000
    farewell_ms: int = 5_000
    connect_timeout_ms: int = 5_000
    retry_min_ms: int = 50
    retry_max_ms: int = 2_000


class Places(Protocol):
    """Where attempts run; see `Pool`."""

    @property
    def running(self) -> list[Attempt]:
        """What has not ended."""
        ...

    def __len__(self) -> int: ...

    def run(self, runs: list[Run]) -> None:
        """Run these; each is answered by a completion."""
        ...

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        """End these."""
        ...

    def give_back(self) -> None:
        """Begin nothing more: what has not begun is completed as handed back."""
        ...

    async def end_all(self) -> None:
        """End everything; returns when nothing runs."""
        ...

    async def idle(self) -> None:
        """Wait until nothing runs."""
        ...


class Worker:
    """One worker. `run` is its life; `done` is to be told what ended in its places."""

    def __init__(
        self,
        port: WorkerPort,
        settings: WorkerSettings,
        types: tuple[str, ...],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.worker_id = settings.worker_id
        self.types = types
        """The types that it runs; none: any."""
        self.limits = settings.limits
        self.session = 0
        """The number of its session; 0: it has had none yet."""
        self._port = port
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._places: Places = _NOWHERE
        self._link: Link | None = None
        self._ended: dict[Attempt, Completion] = {}
        self._all_told = asyncio.Event()
        self._connected = asyncio.Event()
        self._draining = asyncio.Event()
        self._hurried = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._welcomed = asyncio.Event()
        """Set with each welcome, which may contain another lease, and by a late renewal."""
        self._lease_ms = 0
        self._renewed_s = 0.0
        self._ending = False
        self._endings: set[asyncio.Task[object]] = set()
        self._taken_total = 0
        self._share = 1.0
        self._gave_up: BrokerError | None = None
        self._unreached = 0
        """How often in a row it found no broker."""

    def done(self, completions: list[Completion]) -> None:
        """Hear of attempts that ended; they are told until that is acknowledged."""
        for each in completions:
            self._ended[each.id, each.attempt] = each
        self._all_told.clear()
        if self._link is not None:
            self._link.tell(completions)

    def change_limits(self, limits: WorkerLimits) -> None:
        """Take so much at the same time from now on."""
        self.limits = limits
        self._tell_limits()

    def stand(self, share: float) -> None:
        """Take no more than this share of the places: so many of the processes can run."""
        assert 0 <= share <= 1
        self._share = share
        self._tell_limits()

    @property
    def _effective(self) -> WorkerLimits:
        if self._share == 1:
            return self.limits
        places = max(1, int(self.limits.places * self._share)) if self._share else 0
        return msgspec.structs.replace(self.limits, places=places)

    def _tell_limits(self) -> None:
        if self._link is not None:
            limits = self._effective
            self._link.say(lambda sequence: Config(sequence, limits))

    async def fetch_code(self, name: str) -> bytes:
        """A code pool's archive. Raises `UnknownCodePool`, `SessionLost`, `BrokerUnavailable`."""
        if self._link is None:
            raise SessionLost("the worker has no link at the moment")
        return await self._link.inner.fetch_code(name)

    def drain(self) -> None:
        """Take nothing more and leave when what runs has ended.

        A second call ends that now, a third one does not wait until the broker knows of it.
        """
        if self._hurried.is_set():
            self._abandoned.set()
        elif self._draining.is_set():
            self._hurried.set()
        self._draining.set()

    async def connected(self) -> None:
        """Wait until a leader has welcomed it."""
        await self._connected.wait()

    async def run(self, places: Places) -> bool:
        """Work until drained; returns whether everything that ran could end by itself.

        Raises the `BrokerError` with which the broker refused this worker for good.
        """
        self._places = places
        linking = asyncio.create_task(self._keep_linked())
        leasing = asyncio.create_task(self._watch_lease())
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait((linking, draining), return_when=asyncio.FIRST_COMPLETED)
            if linking.done():
                linking.result()
            if self._gave_up is not None:
                raise self._gave_up
            return await self._leave()
        finally:
            leasing.cancel()
            await asyncio.gather(leasing, return_exceptions=True)
            left = (linking, draining, *self._endings)
            for one in left:
                one.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    # Leaving

    async def _leave(self) -> bool:
        settings = self._settings
        if self._link is not None:
            self._link.leave()
        self._places.give_back()
        whole = await self._in_time(self._places.idle(), settings.drain_ms, self._hurried)
        if not whole:
            _log.warning("the drain is over: %d tasks are ended", len(self._places))
            limit_ms = settings.farewell_ms
            if not await self._in_time(self._places.end_all(), limit_ms, self._abandoned):
                # To leave would say that they have ended. The broker waits for the lease instead.
                _log.error("%d tasks did not end in time", len(self._places))
                return False
        told = await self._in_time(self._told(), settings.farewell_ms, self._abandoned)
        if self._ended and not told:
            _log.warning("the ends of %d tasks were not acknowledged", len(self._ended))
            return False
        if self._link is not None:
            await self._link.farewell(settings.farewell_ms)
        return whole

    async def _told(self) -> None:
        """Wait until the broker sends nothing more, and knows of all that ended.

        What it sent before it heard of the drain may be on its way still, and would count as begun
        if the session ended before that was handed back. So a broken link is waited for, too.
        """
        while self._ended or (self.session and not (self._link and self._link.left)):
            self._all_told.clear()
            await self._all_told.wait()

    async def _in_time(
        self, what: Coroutine[Any, Any, None], limit_ms: int, pressed: asyncio.Event
    ) -> bool:
        """Whether something came about in time, and before somebody pressed for the end."""
        hurried = asyncio.create_task(pressed.wait())
        waiting = asyncio.create_task(what)
        try:
            done, _ = await asyncio.wait(
                (waiting, hurried), timeout=limit_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            return waiting in done
        finally:
            hurried.cancel()
            waiting.cancel()
            await asyncio.gather(hurried, waiting, return_exceptions=True)

    # Links

    async def _keep_linked(self) -> None:
        wait_ms = self._settings.retry_min_ms
        while True:
            linked_before = self.session
            try:
                await self._linked()
            except (AccessDenied, StoreClosed) as error:
                self._gave_up = error
                return
            except (BrokerError, TimeoutError) as error:
                self._unreached += self.session == linked_before
                # A leader that changes is no news. What no second and third try mends is, once.
                tell = _log.warning if self._unreached == _TRIES_UNTOLD else _log.info
                why = getattr(error, "message", "") or "it does not answer in time"
                tell("worker %s is not connected and goes on trying: %s", self.worker_id, why)
            if self.session != linked_before:
                wait_ms = self._settings.retry_min_ms
            await asyncio.sleep(wait_ms * self._rng.uniform(0.5, 1.0) / 1000)
            wait_ms = min(2 * wait_ms, self._settings.retry_max_ms)

    async def _linked(self) -> None:
        """Open a link and live on it until it ends. Raises `BrokerError`, `TimeoutError`."""
        hello = Hello(
            self._settings.worker_id,
            self._settings.process_id,
            self._settings.location,
            self.types,
            self._effective,
            (*self._places.running, *self._ended),
        )
        sent_s = self._clock.monotonic()
        async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
            inner = await self._port.connect(hello)
        link = Link(inner, self._clock)
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                first, *others = await inner.receive()
            if isinstance(first, Refused):
                raise (AccessDenied if first.final else SessionLost)(first.reason)
            if not isinstance(first, Welcome):
                raise SessionLost("the broker does not begin with a welcome")
            self._begin(link, first, sent_s)
            if self._draining.is_set():
                link.leave()
            for message in others:
                self._hear(link, message)
            await self._serve(link)
        finally:
            self._link = None
            await link.close()

    def _begin(self, link: Link, welcome: Welcome, sent_s: float) -> None:
        self.session = link.session = welcome.session
        self._lease_ms = welcome.lease_ms
        self._renewed_s = sent_s
        self._welcomed.set()
        self._taken_total = 0
        for attempt in welcome.drop:
            self._ended.pop(attempt, None)
        if welcome.drop:
            self._places.interrupt(list(welcome.drop), "another worker has the task by now")
        self._look_whether_told()
        if self._unreached >= _TRIES_UNTOLD:
            _log.warning("worker %s is connected now", self.worker_id)
        self._unreached = 0
        self._link = link
        link.tell(list(self._ended.values()))
        self._connected.set()

    async def _serve(self, link: Link) -> None:
        beating = asyncio.create_task(self._beat(link))
        writing = asyncio.create_task(link.write())
        reading = asyncio.create_task(self._read(link))
        every = (beating, writing, reading)
        try:
            done, _ = await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in every:
                one.cancel()
            await asyncio.gather(*every, return_exceptions=True)

    async def _beat(self, link: Link) -> None:
        while True:
            link.say(
                lambda sequence: Heartbeat(
                    sequence, link.session, len(self._places), self._taken_total
                )
            )
            await asyncio.sleep(self._lease_ms / _HEARTBEATS_A_LEASE / 1000)
            silent_s = self._clock.monotonic() - self._renewed_s
            if silent_s * 1000 > self._lease_ms * _SILENCE_MAX:
                raise SessionLost("the broker does not answer heartbeats")

    async def _read(self, link: Link) -> None:
        while True:
            for message in await link.inner.receive():
                self._hear(link, message)

    def _hear(self, link: Link, message: FromBroker) -> None:
        if isinstance(message, Assigned):
            if message.session == link.session:
                self._taken_total += len(message.runs)
                self._take(message.runs)
        elif isinstance(message, Acked):
            self._acked(link, message.sequence)
        elif isinstance(message, Interrupt):
            if message.session == link.session:
                self._places.interrupt(message.attempts, message.reason)
        elif isinstance(message, Drain):
            self._draining.set()
        elif isinstance(message, Refused):
            raise (AccessDenied if message.final else SessionLost)(message.reason)

    def _take(self, runs: list[Run]) -> None:
        # Half a lease after the last answer, another worker may have what comes late.
        late = self._left_s <= 0
        if self._draining.is_set() or self._ending or late:
            self.done([Completion(run.id, run.attempt, Ended.HANDED_BACK) for run in runs])
        else:
            self._places.run(runs)

    def _acked(self, link: Link, sequence: int) -> None:
        said = link.acked(sequence)
        if isinstance(said, Beat):
            self._renewed_s = max(self._renewed_s, said.sent_s)
            if self._ending:
                self._welcomed.set()
        elif said is not None:
            for attempt in said:
                self._ended.pop(attempt, None)
        self._look_whether_told()

    def _look_whether_told(self) -> None:
        if not self._ended:
            self._all_told.set()

    # The lease

    @property
    def _left_s(self) -> float:
        """For how long tasks may still run if the broker does not answer."""
        return self._renewed_s + self._lease_ms / 2000 - self._clock.monotonic()

    async def _watch_lease(self) -> None:
        """End every process when half a lease has passed without an acknowledged heartbeat."""
        await self._connected.wait()
        while True:
            self._welcomed.clear()
            left_s = self._left_s
            if left_s > 0:
                # A shorter lease must not be noticed at the end of a longer one.
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._welcomed.wait()
                continue
            if len(self._places):
                _log.warning("the worker ends its tasks: the broker has not answered in time")
                self._ending = True
                ending = asyncio.create_task(self._places.end_all())
                back = asyncio.create_task(self._welcomed.wait())
                self._endings |= {ending, back}
                # Once the lease is renewed, what does not end must not keep other tasks away.
                done, _ = await asyncio.wait((ending, back), return_when=asyncio.FIRST_COMPLETED)
                back.cancel()
                self._endings = {one for one in self._endings if not one.done()}
                self._ending = False
                if ending in done:
                    ending.result()
            await asyncio.sleep(self._lease_ms / _HEARTBEATS_A_LEASE / 1000)


class _Nowhere:
    """No places: before a worker runs."""

    running: list[Attempt] = []

    def __len__(self) -> int:
        return 0

    def run(self, runs: list[Run]) -> None:
        raise AssertionError("a worker that does not run has no places")

    def interrupt(self, attempts: list[Attempt], reason: str) -> None:
        return

    def give_back(self) -> None:
        return

    async def end_all(self) -> None:
        return

    async def idle(self) -> None:
        return


_NOWHERE: Final = _Nowhere()
