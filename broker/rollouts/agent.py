"""The agent of a node: a worker that takes the steps and pings of this node and nothing else.

Invariants:
- The agent gets only tasks of the node's own types and group; each of its children runs one type.
- There is one agent of a node: a second one is another process of the same worker.
- A process that an action starts, such as the node itself, outlives the agent.
"""

import asyncio
import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.connection import Attempt, Completion, Ended, Run, WorkerLimits, WorkerPort
from broker.errors import BrokerUnavailable, InvalidTask
from broker.rollouts.document import check_node
from broker.rollouts.performing import ACTIONS_TYPE, PING_TYPE, STEP_TYPE
from broker.rollouts.steps import agent_id, group_of, ping_type, step_type
from broker.worker.pool import Pool, PoolSettings
from broker.worker.worker import Worker, WorkerSettings
from engine.ports.clock import Clock

PLACES = 4
"""A step of the node, one about another node, a ping, and one more."""
PROCESSES = 2
PERFORMING = "broker.rollouts.performing"
_NO_ACTIONS: Final = (
    "no action is registered, so this agent could take no step: decorate classes with @action, "
    "and name the modules that have them"
)


class AgentPlaces:
    """The pool's places, under the types that its processes know."""

    def __init__(self, pool: Pool, node: str) -> None:
        self._pool = pool
        self._types = {step_type(node): STEP_TYPE, ping_type(node): PING_TYPE}

    @property
    def running(self) -> list[Attempt]:
        """What has not ended."""
        return self._pool.running

    def __len__(self) -> int:
        return len(self._pool)

    def run(self, runs: list[Run]) -> None:
        """Run these; each is answered by a completion."""
        self._pool.run([replace(run, type=self._types[run.type]) for run in runs])

    def interrupt(self, attempts: Iterable[Attempt], reason: str) -> None:
        """End these."""
        self._pool.interrupt(list(attempts), reason)

    def give_back(self) -> None:
        """Begin nothing more of what has not begun."""
        self._pool.give_back()

    async def end_all(self) -> None:
        """End everything; returns when nothing runs."""
        await self._pool.end_all()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._pool.idle()


async def serve_agent(
    port: WorkerPort,
    node: str,
    settings: WorkerSettings,
    pool_settings: PoolSettings,
    clock: Clock,
    rng: random.Random,
    started: Callable[[Worker, Pool], None] | None = None,
) -> bool:
    """Run a node's agent until it is drained; returns whether all that ran could end by itself.

    The modules of `pool_settings` register its actions. Of both settings the agent itself says
    what it is called, how many processes it has, and what it takes. Raises as `serve_worker` does,
    and `InvalidTask` for modules without any action.
    """
    check_node(node)
    workers: list[Worker] = []

    first: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

    def done(completions: list[Completion]) -> None:
        if workers:
            workers[0].done(completions)
        else:
            first.set_result(completions[0])

    limits = WorkerLimits(PLACES, groups=(group_of(node),))
    settings = dataclasses.replace(settings, worker_id=agent_id(node), limits=limits)
    modules = (PERFORMING, *pool_settings.modules)
    pool_settings = dataclasses.replace(
        pool_settings, modules=modules, processes=PROCESSES, places=PLACES, ahead=0, ends_all=False
    )
    pool = Pool(pool_settings, done)
    try:
        await pool.start()
        pool.run([Run(0, 1, "", ACTIONS_TYPE, b"{}")])
        _check_actions(await first)
        worker = Worker(port, settings, (step_type(node), ping_type(node)), clock, rng)
        workers.append(worker)
        if started is not None:
            started(worker, pool)
        standing = asyncio.create_task(_stand(worker, pool))
        try:
            return await worker.run(AgentPlaces(pool, node))
        finally:
            standing.cancel()
            await asyncio.gather(standing, return_exceptions=True)
    finally:
        await pool.close()


def _check_actions(told: Completion) -> None:
    if told.ended is not Ended.FINISHED:
        raise BrokerUnavailable(f"the agent's process does not tell its actions: {told.error}")
    if not msgspec.json.decode(told.result):
        raise InvalidTask(_NO_ACTIONS)


async def _stand(worker: Worker, pool: Pool) -> None:
    """Take no more than the processes that stand can run; without any, the pings say so."""
    while True:
        worker.stand(await pool.until_other_standing())
