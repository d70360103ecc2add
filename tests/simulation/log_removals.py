"""A log is removed and created again under its name, while old leaders believe that they lead.

It goes on beside the log of a run, in some disturbed runs, on machines of its own.

Invariants checked:
- After a removal has returned, no append of a leader from before it is acknowledged.
- Nobody reads an entry from before a removal that had returned.
- Entries that were acknowledged to a leader after the last removal are in the log, each once.
- Nothing is left of a log that was removed and swept.
"""

import asyncio
import random
import struct
from functools import partial
from typing import Final

from engine.errors import CannotRead, EngineError, OutcomeUnknown, PositionTruncated, Unavailable
from engine.ledger.settings import ClientSettings
from engine.log.log import ReplicatedLog
from engine.log.log_list import LOGS, decode_list
from engine.log.log_writer import LogWriter
from engine.log.position import Position
from engine.log.settings import LogSettings
from tests.simulation.disturbances import OLDER, CallCancelled
from tests.simulation.nodes import ClientNode, World
from tests.simulation.oracles import Violation

NAME: Final = "removed"
SHARE: Final = 0.4
_BODY: Final = struct.Struct(">QQ")
_KEEPERS: Final = 2
_TRIES: Final = 5
_PEACE_S_MAX: Final = 60.0


class LogRemovals:
    """Leaders of that log, and an operator that removes it."""

    def __init__(self, world: World, seed: int, settings: LogSettings) -> None:
        rng = random.Random(f"{seed}:log removals")
        self.on = world.disturbances.on and seed not in OLDER and rng.random() < SHARE
        self.stopped = False
        self.keepers: list[ClientNode] = []
        self._world = world
        self._rng = rng
        self._settings = settings
        self._pause_s = rng.choice([0.3, 1.0, 3.0])
        self._append_s = rng.choice([0.02, 0.1])
        self._removed = 0
        """The epoch of the newest removal that has returned."""
        self._perhaps_removed = 0
        """Entries of leaders up to this epoch may be gone: a removal has failed since."""
        self._acknowledged: dict[bytes, Position] = {}

    def start(self, settings: ClientSettings) -> None:
        """Let leaders work, each on a machine of its own, and somebody remove their log."""
        if self.on:
            names = [f"keeper{number}" for number in range(_KEEPERS)]
            self.keepers = [ClientNode(self._world, name, settings, self._begin) for name in names]
            remover = ClientNode(self._world, "remover", settings, lambda node: None)
            self._world.loop.spawn(remover.process, self._remove_again(remover), "remover work")

    def _begin(self, node: ClientNode) -> None:
        if not self.stopped:
            self._world.loop.spawn(node.process, self._lead_again(node), f"{node.name} work")

    def _log(self, node: ClientNode) -> ReplicatedLog:
        return ReplicatedLog(node.client, NAME, self._settings)

    # Leaders

    async def _lead_again(self, node: ClientNode) -> None:
        while not self.stopped:
            await asyncio.sleep(self._pause_s * self._rng.random())
            try:
                leading = self._log(node).lead()
                writer = await self._world.disturbances.cancellable(leading, "lead of another log")
            except (CallCancelled, Unavailable, OutcomeUnknown, CannotRead):
                continue
            await self._reign(node, writer)
            writer.abandon(OutcomeUnknown("the reign is over"))

    async def _reign(self, node: ClientNode, writer: LogWriter) -> None:
        for number in range(self._rng.randint(1, 100)):
            if self.stopped or writer.failure is not None:
                return
            body = _BODY.pack(writer.epoch, number)
            try:
                future = writer.append(body)
            except EngineError:
                return
            ended = partial(self._ended, node.process.name, writer.epoch, body, self._removed)
            future.add_done_callback(ended)
            await asyncio.sleep(self._append_s * self._rng.random())

    def _ended(
        self, who: str, epoch: int, body: bytes, removed: int, done: "asyncio.Future[Position]"
    ) -> None:
        """An append has ended; `removed`: the newest removal that had returned when it began."""
        if done.cancelled() or done.exception() is not None:
            return
        self._world.trace.event("kept", who, epoch, *done.result())
        if epoch <= removed:
            raise Violation(
                f"{who}, leader in epoch {epoch}, has {tuple(done.result())} acknowledged; "
                f"the log had been removed in epoch {removed} before it was appended"
            )
        self._acknowledged[body] = done.result()

    # Removals

    async def _remove_again(self, node: ClientNode) -> None:
        while not self.stopped:
            await asyncio.sleep(3 * self._pause_s * self._rng.random())
            self._hold_somebody()
            await self._remove(node)
            await asyncio.sleep(self._pause_s * self._rng.random())
            for _ in range(_TRIES):
                try:
                    await self._read(node)
                    break
                except (Unavailable, CannotRead, PositionTruncated) as error:
                    self._world.trace.event("not read", node.name, type(error).__name__)
                    await asyncio.sleep(0.2)

    def _hold_somebody(self) -> None:
        """Pause a leader. When it resumes, its log is removed, or another one has its name."""
        loop, process = self._world.loop, self._rng.choice(self.keepers).process
        if self._rng.random() < 0.5 and not process.paused and process.alive:
            loop.pause(process)
            seconds = 2 * self._pause_s * self._rng.random()
            self._world.disturbances.mend_later(seconds, partial(loop.resume, process))
            self._world.trace.event("holds", process.name)

    async def _remove(self, node: ClientNode) -> None:
        async def still() -> bool:
            await node.client.store.sync()
            return True

        try:
            removing = self._log(node).remove(still)
            epoch = await self._world.disturbances.cancellable(removing, "removal")
        except (CallCancelled, Unavailable, OutcomeUnknown):
            found = self._world.tree.tree.get(f"{LOGS}/{NAME}/list")
            self._perhaps_removed = 0 if found is None else decode_list(found.value).epoch
            return
        self._removed = epoch
        self._world.trace.event("removed", epoch)
        self._world.trace.counts["removals"] += 1

    async def _read(self, node: ClientNode) -> None:
        """All of the log that was acknowledged before."""
        log, removed = self._log(node), self._removed
        gone = max(removed, self._perhaps_removed)
        known = {body for body in self._acknowledged if _epoch_of(body) > gone}
        listed = await log.list()
        last = await log.end()
        found: list[bytes] = []
        async for batch in log.read(listed.dropped_through, max(last, listed.dropped_through)):
            found += batch.bodies
        if len(set(found)) != len(found):
            raise Violation(f"entries of the log stand twice: {found}")
        for body in found:
            if _epoch_of(body) <= removed:
                raise Violation(f"{_BODY.unpack(body)} is read after a removal in {removed}")
        if max(self._removed, self._perhaps_removed) == gone:
            lost = {body for body in known - set(found) if self._acknowledged[body] <= last}
            if lost:
                raise Violation(f"{sorted(map(_BODY.unpack, lost))} are not in the log")
        self._world.trace.counts["read anew"] += len(found)

    # The verdict

    async def judge(self, node: ClientNode) -> None:
        """In peace the log can be read, removed and swept."""
        if not self.on:
            return
        deadline_s = self._world.loop.now + _PEACE_S_MAX
        while True:
            try:
                await (await self._log(node).lead()).close()
                await self._read(node)
                epoch = self._removed
                await self._remove(node)
                if self._removed > epoch:
                    await self._log(node).sweep(set(), self._removed)
                    return
            except (Unavailable, OutcomeUnknown, CannotRead) as error:
                if self._world.loop.now > deadline_s:
                    raise Violation(f"log {NAME} is not in peace: {error!r}") from error
            await asyncio.sleep(1.0)


def _epoch_of(body: bytes) -> int:
    epoch: int = _BODY.unpack(body)[0]
    return epoch
