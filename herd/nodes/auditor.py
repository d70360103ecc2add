"""The auditor: one node that sees to it that every tablespace has the replicas that it should have.

It adds replicas where some are missing, one at a time, replaces those whose nodes are away for too
long, removes surplus replicas, gives up restores whose clients are gone, and deletes what is left
of dropped tablespaces.

Invariants:
- There is one auditor, as far as the metadata store can tell. Two of them for a moment change the
  same facts by compare-and-set, and the second finds nothing left to change.
- Replicas of a suspended tablespace stay where they are until it runs again.
- Only time during which it could look counts as absence: after a pause or a lost connection, the
  grace time of absent replicas continues where it was.
- A dropped tablespace is swept only when no node reports a replica of it. A sweep runs in the
  background, and a failed one is retried with increasing delays: a tablespace that cannot be
  removed delays nothing else.
"""

import asyncio
import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Final

from engine.errors import CannotRead, EngineError, FormatTooNew
from engine.ledger.client import LedgerClient
from engine.metadata.restoring import restoration_under_way
from engine.repair.claim import Claim
from herd.errors import DatabaseError
from herd.nodes.directory import Directory
from herd.nodes.dropping import sweep_dropped
from herd.nodes.facts import AUDITOR, SpaceFact
from herd.nodes.outlook import Outlook
from herd.nodes.placing import placed
from herd.nodes.restoring import maker_of
from herd.nodes.settings import NodeSettings

_SWEEPS_AT_ONCE: Final = 8
_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 300.0
_logger = logging.getLogger(__name__)


class SpaceAuditor:
    """One candidate for the office. `candidate` is a name that no other one has."""

    def __init__(
        self,
        client: LedgerClient,
        directory: Directory,
        outlook: Outlook,
        settings: NodeSettings,
        candidate: str,
    ) -> None:
        self.elected = False
        self.replicas_placed = 0
        self.spaces_swept = 0
        self._client = client
        self._directory = directory
        self._outlook = outlook
        self._settings = settings
        self._claim = Claim(client.store, AUDITOR, candidate)
        self._away_s: dict[tuple[str, str], float] = {}
        """How long each replica is away, by tablespace and node."""
        self._sweeps: dict[str, _Sweep] = {}
        """The removals of dropped tablespaces, by uuid."""
        self._sweeping = asyncio.Semaphore(_SWEEPS_AT_ONCE)
        self._looked_s: float | None = None
        self._loads: dict[str, int] | None = None
        """How many replicas each node should have; None: to be counted again."""

    async def look(self) -> None:
        """Check everything once, if this is the auditor. Raises `MetadataUnavailable`.

        The outlook was just read. Nothing is checked while a backup is being restored into the
        store, because the tablespaces are written last.
        """
        judged = False
        try:
            restoring = await restoration_under_way(self._client.store)
            if not restoring and await self._claim.hold():
                if not self.elected:
                    _logger.info("this node is the auditor of tablespaces now")
                self.elected = judged = True
                self._judge_absences()
                self._loads = None
                self._forget_sweeps()
                for name, fact in sorted(self._outlook.active.items()):
                    await self._judge(name, fact)
        finally:
            if not judged:
                self._end_term()

    async def close(self) -> None:
        """Step down."""
        sweeps = [sweep.running for sweep in self._sweeps.values() if sweep.running is not None]
        self._end_term()
        await asyncio.gather(*sweeps, return_exceptions=True)
        await self._claim.release()

    def _end_term(self) -> None:
        self.elected = False
        for sweep in self._sweeps.values():
            if sweep.running is not None:
                sweep.running.cancel()
        self._sweeps.clear()
        self._looked_s = None
        self._away_s.clear()

    def _judge_absences(self) -> None:
        elapsed_s, before = self._elapsed_s(), self._away_s
        self._away_s = {
            (name, node): before[name, node] + elapsed_s if (name, node) in before else 0.0
            for name, fact in self._outlook.active.items()
            for node in (fact.replicas if fact.runs else ())
            if self._is_away(name, node)
        }

    def _is_away(self, name: str, node: str) -> bool:
        if node not in self._outlook.nodes:
            return True
        report = self._outlook.report(name, node)
        return report is not None and report.role == "failed"

    def _elapsed_s(self) -> float:
        """How much of the time since the last look counts as looked at."""
        now_s, before_s = self._client.clock.monotonic(), self._looked_s
        self._looked_s = now_s
        if before_s is None:
            return 0.0
        return min(now_s - before_s, 1.5 * self._settings.look_ms / 1000)

    async def _judge(self, name: str, fact: SpaceFact) -> None:
        try:
            if fact.restoring:
                await self._give_up(name, fact)
            elif fact.dropped:
                self._sweep(name, fact)
            elif fact.runs:
                await self._place(name)
        except (DatabaseError, CannotRead, FormatTooNew) as error:
            # It was dropped meanwhile, or a newer program has changed it.
            _logger.info("tablespace %s: %s", name, error)

    async def _place(self, name: str) -> None:
        """Give a tablespace the replicas that it should have."""
        outlook, grace_s = self._outlook, self._settings.grace_ms / 1000
        given_up = {node for (of, node), s in self._away_s.items() if of == name and s >= grace_s}

        known = outlook.spaces[name]

        def change(fact: SpaceFact) -> SpaceFact:
            # While the cluster's default is unknown, each tablespace keeps its number.
            default = fact.expected if outlook.settings is None else outlook.settings.replicas
            reports = partial(outlook.report, name)
            if self._loads is None:
                self._loads = outlook.loads()
            return placed(fact, reports, given_up, self._loads, default, self._is_busy)

        if change(known) == known:
            return
        changed = await self._directory.change(name, change)
        outlook.know(name, changed)
        self._loads = None
        self.replicas_placed += len(set(changed.replicas) - set(known.replicas))
        if changed.expected != known.expected:
            _logger.warning(
                "tablespace %s: %d replicas wanted, before %d",
                *(name, changed.expected, known.expected),
            )
        if changed.replicas == known.replicas:
            return
        _logger.warning(
            "tablespace %s: replicas on %s, formerly on %s",
            name,
            ", ".join(changed.replicas),
            ", ".join(known.replicas) or "none",
        )

    def _is_busy(self, node: str) -> bool:
        return self._outlook.making(node) >= self._settings.made_at_once

    async def _give_up(self, name: str, fact: SpaceFact) -> None:
        """End a restoration whose maker is gone: it is swept from the next look on."""
        if await maker_of(self._client.store, name, fact.uuid).still():
            return
        if not await self._directory.settle(name, fact.uuid, kept=False):
            _logger.warning("tablespace %s: its restoration was cut short", name)

    def _forget_sweeps(self) -> None:
        dropped = {fact.uuid for fact in self._outlook.active.values() if fact.dropped}
        for uuid, sweep in list(self._sweeps.items()):
            if uuid not in dropped and sweep.running is None:
                del self._sweeps[uuid]

    def _sweep(self, name: str, fact: SpaceFact) -> None:
        """Start to remove what a dropped tablespace left, once no node runs it."""
        nodes = self._outlook.nodes.values()
        if any(one.uuid == fact.uuid for node in nodes for one in node.replicas.values()):
            return
        sweep = self._sweeps.setdefault(fact.uuid, _Sweep())
        if sweep.running is None and self._client.clock.monotonic() >= sweep.not_before_s:
            doing = self._remove(name, fact.uuid, sweep)
            sweep.running = asyncio.create_task(doing, name=f"removal of {name}")

    async def _remove(self, name: str, uuid: str, sweep: "_Sweep") -> None:
        try:
            async with self._sweeping:
                ledgers = await sweep_dropped(self._client, name, uuid)
                await self._directory.forget(name, uuid)
        except EngineError as error:
            sweep.failed(self._client.clock.monotonic())
            if str(error) != sweep.reason:
                sweep.reason = str(error)
                _logger.warning("tablespace %s is not removed yet: %s", name, error)
        except Exception:
            # A bug: the next look must not retry it at once.
            sweep.failed(self._client.clock.monotonic())
            _logger.exception("tablespace %s could not be removed", name)
        else:
            sweep.not_before_s = math.inf
            self.spaces_swept += 1
            _logger.warning("tablespace %s is gone, with %d ledgers", name, ledgers)
        finally:
            sweep.running = None


@dataclass
class _Sweep:
    """The removal of one dropped tablespace."""

    running: "asyncio.Task[None] | None" = None
    not_before_s: float = 0.0
    pause_s: float = _RETRY_S
    reason: str = ""
    """Why the last attempt failed."""

    def failed(self, now_s: float) -> None:
        """Wait before the next attempt, longer each time."""
        self.not_before_s = now_s + self.pause_s
        self.pause_s = min(2 * self.pause_s, _RETRY_S_MAX)
