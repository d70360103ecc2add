"""Pings: a task to each agent and back, so that a silent agent is noticed before it is needed.

Invariants:
- An agent has at most one ping under way, so what is sent is bounded by the agents there are.
- Nothing of it is durable: a coordinator begins anew, and nobody is alarmed for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.calls import Calls
from broker.commands import Refusal
from broker.errors import UnknownTask
from broker.rollouts.facts import PING, Alarm
from broker.rollouts.steps import ping_spec
from broker.task import FINAL_STATES, Status

_PINGS_MAX: Final = 1_000


@dataclass(slots=True)
class _Agent:
    """One agent. `answered_ms`: when it did last, or was first seen."""

    answered_ms: int
    sent_ms: int = 0
    task_id: int = 0
    silent: bool = False


class Pings:
    """Pings to agents: one each `every_ms`, alarmed after `silent_ms` without an answer."""

    def __init__(self, every_ms: int = 60_000, silent_ms: int = 180_000) -> None:
        self._every_ms = every_ms
        self._silent_ms = silent_ms
        self._agents: dict[str, _Agent] = {}
        self._number = 0

    def ages_ms(self, now_ms: int) -> dict[str, int]:
        """How long ago each agent answered."""
        return {name: now_ms - each.answered_ms for name, each in sorted(self._agents.items())}

    async def look(self, calls: Calls, agents: Iterable[str], now_ms: int) -> list[Alarm]:
        """Hear answers, send what is due. `agents`: those that are, or lately were, connected."""
        there = set(agents)
        for name in [each for each in self._agents if each not in there]:
            del self._agents[name]
        for name in sorted(there):
            self._agents.setdefault(name, _Agent(now_ms))
        alarms = []
        for name, each in self._agents.items():
            await self._hear(calls, each)
            late_ms = now_ms - each.answered_ms
            if late_ms > self._silent_ms and not each.silent:
                each.silent = True
                text = f"its agent has answered no ping for {late_ms // 1000} s"
                alarms.append(Alarm(PING, "", name, "", text))
        await self._send(calls, now_ms)
        return alarms

    async def _hear(self, calls: Calls, agent: _Agent) -> None:
        if not agent.task_id:
            return
        try:
            task = await calls.task(agent.task_id)
        except UnknownTask:
            agent.task_id = 0
            return
        if task.status in FINAL_STATES:
            agent.task_id = 0
            if task.status is Status.FINISHED:
                agent.answered_ms, agent.silent = max(agent.answered_ms, task.finished_ms), False

    async def _send(self, calls: Calls, now_ms: int) -> None:
        due = [
            (name, each)
            for name, each in self._agents.items()
            if not each.task_id and now_ms - each.sent_ms >= self._every_ms
        ][:_PINGS_MAX]
        if not due:
            return
        self._number += 1
        specs = [ping_spec(name, self._number, now_ms, self._every_ms) for name, _ in due]
        for (_, each), answer in zip(due, await calls.submit(specs), strict=True):
            each.sent_ms = now_ms
            each.task_id = 0 if isinstance(answer, Refusal) else answer
