"""Clients of a broker in haste: they cancel and retry at once, add children late, wait for long.

They work only in runs that are disturbed, beside the other clients, and draw from a generator of
their own.

Invariants:
- After the faults have ended, a client that waits for a task without a time limit gets the task's
  end or an error because the term ended, unless the broker that it asked has died.
"""

import asyncio
import random
from typing import Any, Final

from broker.commands import Parent
from broker.errors import BrokerError
from broker.task import Rule, Status
from tests.simulation.broker_workload import BrokerClient, BrokerWorkload, Unanswered
from tests.simulation.loop import Process
from tests.simulation.oracles import Violation

_THINK_S: Final = 0.25
_RECENT: Final = 6


class HastyClient(BrokerClient):
    """One client in haste."""

    def __init__(self, workload: BrokerWorkload, process: Process, rng: random.Random) -> None:
        super().__init__(workload, process, rng)
        self._long: list[tuple[Process, asyncio.Task[None]]] = []
        self._calls: list[asyncio.Task[Any]] = []

    async def hurry(self) -> None:
        """Do this and that, until it is enough."""
        while not self._workload.stopped:
            await self._workload.rested()
            accepted = list(self._oracle.accepted.values())[-_RECENT:]
            if accepted:
                task_id = self._rng.choice(accepted)
                draw = self._rng.random()
                if draw < 0.4:
                    self._cancel_and_retry(task_id)
                elif draw < 0.8:
                    await self._add_child(task_id)
                else:
                    self._wait_long(task_id)
            await asyncio.sleep(_THINK_S * self._rng.random())
        await asyncio.gather(*self._calls)

    def judge(self) -> None:
        """Nobody still waits at a broker that lives. Every task has ended."""
        waiting = [
            task.get_name() for process, task in self._long if process.alive and not task.done()
        ]
        if waiting:
            raise Violation(f"these wait for tasks that have ended: {waiting[:3]}")
        for process, task in self._long:
            if process.alive:
                task.result()

    def _cancel_and_retry(self, task_id: int) -> None:
        """Do both at once: the retry is sent before the cancellation is answered."""
        self._oracle.cancelled.add(task_id)
        self._oracle.anew[task_id] += 1
        by = "client in haste"
        self._spawn(self.once(lambda broker: broker.cancel([task_id], by)))
        self._spawn(self.once(lambda broker: broker.retry([task_id], by)))

    def _spawn(self, call: Any) -> None:
        self._calls = [task for task in self._calls if not task.done()]
        self._calls.append(asyncio.create_task(call, name=f"{self._process.name} work"))

    async def _add_child(self, task_id: int) -> None:
        """A child of a task that was submitted before."""
        spec = self._spec()
        spec.parents = (Parent(task_id, rule=Rule.ALWAYS),)
        self._oracle.tried.add(spec.payload.decode())
        try:
            await self._ask(lambda broker: broker.submit([spec]))
        except (BrokerError, Unanswered):
            await self._elsewhere()

    def _wait_long(self, task_id: int) -> None:
        """Wait at one broker without a limit, for as long as its process lives."""
        node = self._target
        process, broker = node.process, node.broker
        if broker is None or not process.alive:
            return

        async def wait() -> None:
            try:
                task = await broker.wait(task_id)
            except BrokerError:
                return
            self._oracle.see(task.id, Status(task.status))

        name = f"{self._process.name} waits for {task_id} at {process.name}"
        self._long.append((process, self._world.loop.spawn(process, wait(), name)))
