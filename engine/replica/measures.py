"""What a replica tells of itself: counts once a batch, and questions for whoever looks.

Invariants:
- Nothing is told once a command.
- The questions end with the replica.
"""

from collections.abc import Callable
from typing import Final

from engine.log.position import Position
from engine.ports.metrics import Metrics

_SAYS: Final = {
    "leader": "1 while this replica leads.",
    "failed": "1 when this replica has stopped for good.",
    "epoch": "The epoch of the last term that was applied.",
    "entries": "Entries of the log applied since its beginning.",
    "position_ledger": "The ledger of the last entry applied.",
    "position_entry": "The number of the last entry applied in its ledger.",
    "unwritten_bytes": "Committed changes that the state's disk does not have yet.",
    "pending_bytes": "Proposals under way.",
}


class ReplicaMeasures:
    """The numbers of one replica of one log."""

    def __init__(self, metrics: Metrics, log_name: str) -> None:
        self._metrics = metrics
        self._log = log_name
        self.commands = metrics.counter(
            "herdbook_replica_commands_total", "Entries that this replica proposed.", log=log_name
        )
        self.batches = metrics.counter(
            "herdbook_replica_batches_total", "Appends that carried them.", log=log_name
        )
        self.commit_seconds = metrics.histogram(
            "herdbook_replica_commit_seconds",
            "From sending a batch to the log until it was durable.",
            log=log_name,
        )
        self.terms = metrics.counter(
            "herdbook_replica_terms_total", "Terms that this replica began to lead.", log=log_name
        )
        self.snapshots = metrics.counter(
            "herdbook_replica_snapshots_total", "Snapshots that this replica wrote.", log=log_name
        )
        self._ends: list[Callable[[], None]] = []

    def watch(
        self,
        *,
        leader: Callable[[], bool],
        failed: Callable[[], bool],
        epoch: Callable[[], int],
        entries: Callable[[], int],
        position: Callable[[], Position],
        unwritten_bytes: Callable[[], int],
        pending_bytes: Callable[[], int],
    ) -> None:
        """Let the replica be asked."""
        questions: dict[str, Callable[[], float]] = {
            "leader": lambda: float(leader()),
            "failed": lambda: float(failed()),
            "epoch": epoch,
            "entries": entries,
            "position_ledger": lambda: position().ledger,
            "position_entry": lambda: position().entry,
            "unwritten_bytes": unwritten_bytes,
            "pending_bytes": pending_bytes,
        }
        for name, read in questions.items():
            full_name = f"herdbook_replica_{name}"
            self._ends.append(self._metrics.gauge(full_name, _SAYS[name], read, log=self._log))

    def end(self) -> None:
        """Nobody asks any more."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()
