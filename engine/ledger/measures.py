"""What a client counts: one set of numbers for all ledgers of a client."""

from typing import TYPE_CHECKING, Final

from engine.ports.metrics import NO_METRICS, Metrics
from engine.slow import SLOW

if TYPE_CHECKING:
    from engine.ledger.slot import Slot


class ClientMeasures:
    """The client's counters and histograms; told once a request or a confirmation."""

    __slots__ = (
        "adds",
        "append_latency_s",
        "ensemble_changes",
        "lost_replicas",
        "read_latency_s",
        "speculative_reads",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.adds = metrics.counter(
            "herdbook_client_adds_total", "Entries confirmed by an ack quorum."
        )
        self.append_latency_s = metrics.histogram(
            "herdbook_client_append_request_seconds",
            "From sending a request of one or more runs to its bookie's acknowledgement.",
        )
        self.ensemble_changes = metrics.counter(
            "herdbook_client_ensemble_changes_total", "Ensembles changed for a failed bookie."
        )
        self.lost_replicas = metrics.counter(
            "herdbook_client_lost_replicas_total",
            "Bookies that a writer went on without, for want of another.",
        )
        self.read_latency_s = metrics.histogram(
            "herdbook_client_read_request_seconds",
            "From asking the first replica to the first intact answer.",
        )
        self.speculative_reads = metrics.counter(
            "herdbook_client_speculative_reads_total",
            "Reads that asked another replica because the first one took long.",
        )

    def acknowledged(self, took_s: float, slot: "Slot", ledger_id: int) -> None:
        """A bookie has acknowledged a request, up to its mark."""
        self.append_latency_s.observe(took_s)
        if took_s > SLOW.append_s:
            told = {"ledger": ledger_id, "last": slot.mark}
            SLOW.note("append", took_s, waited="bookie", bookie=slot.bookie_id, **told)


UNMEASURED: Final = ClientMeasures(NO_METRICS)
