"""Whatever users and workers do while commands are under way, memory follows from the rows.

Invariants checked after every step:
- `Broker.check_memory` finds no difference, with whatever is under way at that moment.

And at the end of each history: every task that may run is given to a worker with free places, no
worker is sent away, and nothing is left in any queue.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final

import pytest

from broker.commands import Parent, Spec
from broker.connection import (
    Acked,
    Assigned,
    Completion,
    Done,
    Ended,
    Heartbeat,
    Hello,
    Run,
    Welcome,
    WorkerLimits,
)
from broker.errors import BrokerError, SessionLost
from broker.leading.link import LocalLink
from broker.settings import Limit, Mapping, Pause, TenantLimits
from broker.task import Backoff
from tests.broker.service.held import HeldBroker, held_broker

WORKER: Final = "w"
SOON: Final = Backoff(1, 100, 1, 0)


class _History:
    """One broker, a worker, and a task that everything happens to."""

    def __init__(self, held: HeldBroker) -> None:
        self.held = held
        self.broker = held.broker
        self.replica = held.replica
        self.link: LocalLink | None = None
        self.runs: list[Run] = []
        self.told: dict[int, list[Completion]] = {}
        """What was told and is not acknowledged, by the number of the message."""
        self.sequence = 0
        self.taken_total = 0
        self.ids: list[int] = []
        self.asked: list[asyncio.Task[Any]] = []
        self.limited = self.paused = self.mapped = False
        self.checks = 0

    async def begin(self, *, running: bool) -> None:
        """A task waits; with `running` behind another one, which has the worker's only place."""
        await self.broker.set("tenant", "default", TenantLimits(1.0, 0, 4))
        if running:
            await self._connect()
            await self._submit(Spec("a", attempts_max=0, backoff=SOON))
            await self.held.settled()
            self._listen()
        await self._submit(Spec("a", attempts_max=0, backoff=SOON, slot="one", unique_key="key"))
        await self.held.settled()
        self.replica.held = True

    async def _submit(self, *specs: Spec) -> None:
        answers = await self.broker.submit(list(specs))
        self.ids += [answer for answer in answers if isinstance(answer, int)]

    def ask(self, asked: Coroutine[Any, Any, Any]) -> None:
        self.asked.append(asyncio.create_task(asked))

    # What may happen, each without waiting for its answer

    async def child(self) -> None:
        self.ask(self._submit(Spec("c", parents=(Parent(self.ids[-1]),))))

    async def cancel(self) -> None:
        self.ask(self.broker.cancel(self.ids[-1:]))

    async def retry(self) -> None:
        self.ask(self.broker.retry(self.ids[-1:]))

    async def delete(self) -> None:
        self.ask(self.broker.delete(self.ids[-1:]))

    async def limit(self) -> None:
        self.limited = not self.limited
        self.ask(self.broker.set("type", "a", Limit(1) if self.limited else None))

    async def pause(self) -> None:
        self.paused = not self.paused
        self.ask(self.broker.set("pause", "tenant:default", Pause() if self.paused else None))

    async def tenant(self) -> None:
        self.mapped = not self.mapped
        mapping = Mapping(1, ("db",)) if self.mapped else None
        self.ask(self.broker.set("mapping", "default", mapping))

    async def reconnect(self) -> None:
        self.ask(self._connect())

    async def finish(self) -> None:
        await self._end(Ended.FINISHED)

    async def fail(self) -> None:
        await self._end(Ended.FAILED)

    async def give_back(self) -> None:
        await self._end(Ended.HANDED_BACK)

    async def lose(self) -> None:
        """The worker is silent for a whole lease."""
        await self.held.advance(self.broker.settings.lease_ms + 2_000)

    async def _end(self, ended: Ended) -> None:
        self._listen()
        if self.link is not None and self.link.open and self.runs:
            told = [Completion(run.id, run.attempt, ended, retry_after_ms=0) for run in self.runs]
            self.runs = []
            await self._tell(told)

    async def _tell(self, told: list[Completion]) -> None:
        assert self.link is not None
        self.sequence += 1
        self.told[self.sequence] = told
        await self.link.send([Done(self.sequence, self.link.session, told)])

    async def _connect(self) -> None:
        self._listen()
        running = tuple((run.id, run.attempt) for run in self.runs)
        running += tuple((told.id, told.attempt) for told in self._untold())
        hello = Hello(WORKER, "process", "here", (), WorkerLimits(1), running=running)
        link = await self.broker.connect(hello)
        if link.open:
            self.link, self.taken_total = link, 0
            self._listen()
            told, self.told = self._untold(), {}
            if told:
                await self._tell(told)

    def _untold(self) -> list[Completion]:
        return [one for told in self.told.values() for one in told]

    def _listen(self) -> None:
        if self.link is None:
            return
        for message in self.link.take():
            if isinstance(message, Assigned):
                self.runs += message.runs
                self.taken_total += len(message.runs)
            elif isinstance(message, Acked):
                self.told.pop(message.sequence, None)
            elif isinstance(message, Welcome):
                self.runs = [one for one in self.runs if (one.id, one.attempt) not in message.drop]
                self.told = {
                    number: [one for one in told if (one.id, one.attempt) not in message.drop]
                    for number, told in self.told.items()
                }

    def check(self, words: object) -> None:
        assert self.broker.check_memory() == [], words
        self.checks += 1

    async def end(self, words: object) -> None:
        """Let everything be answered; then a worker with free places has all that may run."""
        await self.held.settled()
        for one in self.asked:
            with suppress(BrokerError):
                await one
        self.check(words)
        for kind, name in (("type", "a"), ("pause", "tenant:default"), ("mapping", "default")):
            await self.broker.set(kind, name, None)
        if self.link is None or not self.link.open:
            await self._connect()
        await self.held.settled()
        for _ in range(30):
            if all(map(self._ended, self.ids)):
                break
            await self._work()
            await self.held.advance(1_000)
            await self.held.settled()
            self.check(words)
        left = [self.broker.get(id).status for id in self.ids if not self._ended(id)]
        assert left == [], (words, left)
        assert self.broker.term.scheduler.waiting == 0, words
        assert self.link is not None and self.link.open, words

    async def _work(self) -> None:
        assert self.link is not None
        if not self.link.open:
            await self._connect()
        self._listen()
        assert self.link is not None
        self.sequence += 1
        beat = Heartbeat(self.sequence, self.link.session, len(self.runs), self.taken_total)
        with suppress(SessionLost):
            await self.link.send([beat])
            await self._end(Ended.FINISHED)

    def _ended(self, task_id: int) -> bool:
        try:
            return self.broker.get(task_id).status.final
        except BrokerError:
            return True


Act = Callable[[_History], Awaitable[None]]
SOME: Final[tuple[Act, ...]] = (
    _History.child,
    _History.cancel,
    _History.retry,
    _History.reconnect,
    _History.finish,
    _History.delete,
)
ALL: Final[tuple[Act, ...]] = (
    *SOME,
    _History.limit,
    _History.pause,
    _History.tenant,
    _History.fail,
    _History.give_back,
    _History.lose,
)


async def _played(acts: Sequence[Act], applied: Sequence[int], *, running: bool) -> int:
    """Play a history; how often it was checked."""
    words = [
        (getattr(act, "__name__", ""), count) for act, count in zip(acts, applied, strict=True)
    ]
    async with held_broker() as held:
        history = _History(held)
        await history.begin(running=running)
        for act, count in zip(acts, applied, strict=True):
            await act(history)
            await held.turns()
            history.check(words)
            held.replica.apply(count)
            history.check(words)
            await held.turns()
            history.check(words)
        await history.end(words)
        return history.checks


@pytest.mark.parametrize("running", [False, True])
async def test_every_short_history_of_late_commands_leaves_memory_as_the_rows_are(
    running: bool,
) -> None:
    for acts in product(SOME, repeat=3):
        for applied in product((0, 1), repeat=2):
            assert await _played(acts, (*applied, 0), running=running) >= 10


@pytest.mark.parametrize("seed", range(3))
async def test_long_histories_of_late_commands_leave_memory_as_the_rows_are(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        acts = rng.choices(ALL, k=14)
        applied = [rng.choice((0, 0, 1, 2, 9)) for _ in acts]
        assert await _played(acts, applied, running=rng.random() < 0.5) > 40
