"""Logs events of a broker, one line of JSON each.

They go to the logger `broker.events`, level INFO: `{"event": "worker_lost", "at_ms": ..., ...}`.

Invariants:
- There are no events per task: dead letters are counted and reported together.
- An event has a name, a time of the broker's clock, and plain values.
- The number of tenants and types that are counted separately is bounded.
"""

import logging
from typing import Final

import msgspec

from broker.leading.clock import BrokerTime
from broker.task import DETAIL_LENGTH_MAX, SessionState, Task, WorkerSession

EVENTS: Final = "broker.events"
KINDS_MAX: Final = 100
_OTHER: Final = ("", "")
_logger = logging.getLogger(EVENTS)
_STATES: Final = {
    SessionState.CONNECTED: "worker_connected",
    SessionState.LOST: "worker_lost",
    SessionState.LEFT: "worker_left",
}


class Events:
    """The events of one term."""

    def __init__(self, time: BrokerTime, term: int) -> None:
        self._time = time
        self._term = term
        self._dead: dict[tuple[str, str], tuple[int, Task]] = {}

    def tell(self, event: str, **values: str | int) -> None:
        """Log an event."""
        if _logger.isEnabledFor(logging.INFO):
            told: dict[str, str | int] = {"event": event, "at_ms": self._time.now_ms()}
            told["term"] = self._term
            for name, value in values.items():
                # An error message may contain a file name that is not valid Unicode.
                told[name] = _text(value) if isinstance(value, str) else value
            _logger.info("%s", msgspec.json.encode(told).decode())

    def session(self, worker: WorkerSession) -> None:
        """A worker's session began or ended."""
        self.tell(
            _STATES[worker.state],
            worker_id=worker.worker_id,
            session=worker.session,
            location=worker.location,
        )

    def dead(self, task: Task) -> None:
        """Count a task that failed for good."""
        kind = task.tenant, task.type
        if kind not in self._dead and len(self._dead) >= KINDS_MAX:
            kind = _OTHER
        self._dead[kind] = self._dead.get(kind, (0, task))[0] + 1, task

    def flush(self) -> None:
        """Log what was counted. To be called regularly."""
        dead, self._dead = self._dead, {}
        for (tenant, type_), (count, newest) in dead.items():
            self.tell(
                "dead_letters",
                tenant=tenant,
                type=type_,
                tasks=count,
                newest_id=newest.id,
                error=newest.error[:DETAIL_LENGTH_MAX],
            )


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()
