"""What a node's repair shows of itself: questions to its own counts, asked by whoever looks."""

from collections.abc import Callable
from functools import partial

from engine.ports.metrics import Metrics
from engine.repair.node import RepairNode

_COUNTS = {
    "ledgers_whole": "Ledgers made whole since the start.",
    "tries_blocked": "Tries that could not make a ledger whole since the start.",
    "ledgers_fenced": "Open ledgers fenced and closed since the start.",
    "fragments_moved": "Fragments given to other bookies since the start.",
    "entries_written": "Entries written to replicas since the start.",
    "bytes_written": "Bytes written to replicas since the start.",
    "entries_read": "Entries read from replicas since the start.",
}


def watch_repair(metrics: Metrics, node: RepairNode) -> Callable[[], None]:
    """Let a node's counts be looked at; returns the way to end that."""
    counts = node.repairer.counts
    ends = [
        metrics.gauge(f"herdbook_repair_{name}", says, partial(getattr, counts, name))
        for name, says in _COUNTS.items()
    ]
    ends.append(
        metrics.gauge(
            "herdbook_repair_auditor",
            "1 while this node is the cluster's auditor.",
            lambda: float(node.auditor.elected),
        )
    )
    ends.append(
        metrics.gauge(
            "herdbook_repair_ledgers_queued",
            "Ledgers that this node's auditor has queued since the start.",
            lambda: node.auditor.ledgers_queued,
        )
    )
    ends.append(
        metrics.gauge(
            "herdbook_repair_ledgers_unreadable",
            "Ledgers whose metadata this node's newest survey could not read.",
            lambda: len(node.workshop.unreadable),
        )
    )
    ends.append(
        metrics.gauge(
            "herdbook_repair_entries_released",
            "Entries that bookies of this node gave back since the start because others hold them.",
            lambda: node.surplus.released,
        )
    )
    ends.append(
        metrics.gauge(
            "herdbook_repair_mishaps",
            "Failures of repair that nobody thought of, since the start; the log tells them.",
            lambda: node.workshop.mishaps,
        )
    )

    def end() -> None:
        for each in ends:
            each()

    return end
