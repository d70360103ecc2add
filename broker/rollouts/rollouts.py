"""Roll-outs for users: start, look, pause, resume, cancel, clear; with an event loop.

    name = await tasks.rollouts.start({"action": "restart", "version": 1, "limit": 1, ...})
    await tasks.rollouts.wait(name)

Invariants:
- A change is made from what was seen, or not at all: what others did meanwhile is seen first.
- What these calls decide is only what operators decide; steps begin by the coordinator's rules.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from broker.calls import Calls
from broker.errors import RolloutChanged, WaitTimedOut
from broker.rollout_commands import Note, RolloutChange
from broker.rollouts import operating
from broker.rollouts.document import Document, read_document
from broker.rollouts.explaining import explain
from broker.rollouts.record import ENDED, Rollout, encode_rollout, load
from broker.rollouts.steps import AGENT

_TRIES_MAX: Final = 20
_PAUSE_S: Final = 0.1


class AsyncRollouts:
    """The roll-outs of one broker."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def start(self, document: Document | Mapping[str, Any] | bytes, by: str = "") -> str:
        """Start a roll-out; its name, by cluster and time where the document gives none.

        Raises `InvalidTask`, `ClusterBusy`, `DuplicateTask` for a `task_id` that was used before.
        """
        read = read_document(document)
        now_ms = await self._calls.now_ms()
        # A name is a part of paths.
        cluster = re.sub(r"[\s/]", "-", read.cluster_name)
        name = read.task_id or f"{cluster}-{now_ms}"
        rollout = Rollout(name, replace(read, task_id=name))
        rollout.started_ms = rollout.progress_ms = now_ms
        note = Note(now_ms, by, "", f"started: {read.action} {read.version} of {read.owner}")
        change = RolloutChange(name, 0, encode_rollout(rollout), read.cluster_name, notes=[note])
        await self._calls.put_rollout(change, by)
        return name

    async def get(self, name: str) -> Rollout:
        """A roll-out as it is, and what it waits for. Raises `UnknownRollout`."""
        found = load(await self._calls.rollout(name))
        await self._explain([found])
        return found

    async def list(self, above: str = "", limit: int = 100) -> list[Rollout]:
        """Roll-outs by name, those too that have ended: a page, the last one is empty."""
        rows = await self._calls.rollouts(above, limit)
        found = [load(row) for row in rows]
        await self._explain(found)
        return found

    async def _explain(self, rollouts: Sequence[Rollout]) -> None:
        """Fill in what each waits for."""
        going_on = [each for each in rollouts if each.state not in ENDED]
        if going_on:
            workers = await self._calls.workers(AGENT)
            linked = {each.session.worker_id.removeprefix(AGENT) for each in workers if each.linked}
            for each in going_on:
                explain(each, linked)

    async def notes(self, name: str) -> Sequence[Note]:
        """The audit log of a roll-out: who did what, when, in order."""
        found: list[Note] = []
        above = 0
        while page := await self._calls.rollout_notes(name, above):
            above = page[-1][0]
            found += [note for _, notes in page for note in notes]
        return found

    async def pause(self, name: str, why: str = "", by: str = "") -> None:
        """Begin nothing more until `resume`; what runs is finished. Raises `NotInState`."""
        await self._change(name, by, lambda known, now: operating.pause(known, why, by, now))

    async def resume(self, name: str, by: str = "") -> None:
        """Go on, without nodes that are gone. Raises `NotInState`."""
        await self._change(name, by, lambda known, now: operating.resume(known, by, now))

    async def cancel(self, name: str, by: str = "") -> None:
        """Begin nothing more for good; it ends when all nodes are healthy. Raises `NotInState`."""
        await self._change(name, by, lambda known, now: operating.cancel(known, by, now))

    async def clear(self, name: str, node: str, *, done: bool = False, by: str = "") -> None:
        """Say that a node is healthy: it is `done`, or else it waits for its turn again.

        Raises `NotInState` for a node that needs no word, `InvalidTask` for one there is not.
        """
        await self._change(name, by, lambda known, now: operating.clear(known, node, done, by, now))

    async def remove(self, name: str) -> None:
        """Forget a roll-out that has ended, and its audit log. Raises `NotInState`."""
        row = await self._calls.rollout(name)
        await self._calls.remove_rollout(name, row.version)

    async def wait(self, name: str, timeout_ms: int | None = None) -> Rollout:
        """A roll-out when it has ended. Raises `UnknownRollout`, `WaitTimedOut`."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while True:
                    rollout = load(await self._calls.rollout(name))
                    if rollout.state in ENDED:
                        return rollout
                    await asyncio.sleep(_PAUSE_S)
        except TimeoutError:
            raise WaitTimedOut(f"roll-out {name} has not ended after {timeout_ms} ms") from None

    async def _change(
        self, name: str, by: str, change: Callable[[Rollout, int], Sequence[Note]]
    ) -> None:
        for tries in range(_TRIES_MAX):
            row = await self._calls.rollout(name)
            rollout = load(row)
            notes = change(rollout, await self._calls.now_ms())
            record = encode_rollout(rollout)
            wanted = RolloutChange(name, row.version, record, row.cluster, notes=notes)
            try:
                await self._calls.put_rollout(wanted, by)
                return
            except RolloutChanged:
                if tries == _TRIES_MAX - 1:
                    raise
