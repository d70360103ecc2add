"""What a bookie counts: one set of numbers for each bookie of a process.

Invariants:
- It is told once a batch, a refusal or a request, never once an entry.
"""

from collections.abc import Callable, Sequence

from engine.ports.metrics import LATENCY_BOUNDS_S, Counter, Metrics
from engine.slow import SLOW
from engine.transport.contract import Status


class BookieMeasures:
    """The counters, histograms and gauges of one bookie."""

    def __init__(self, metrics: Metrics, bookie_id: str) -> None:
        self._metrics = metrics
        self._id = bookie_id
        self.taken_entries = 0
        self.taken_bytes = 0
        self._refusals: dict[Status, Counter] = {}
        self._gauges: list[Callable[[], None]] = []
        self._batches = metrics.counter(
            "herdbook_bookie_batches_total", "Batches written to the journal.", bookie=bookie_id
        )
        self._requests = metrics.counter(
            "herdbook_bookie_requests_total", "Requests in those batches.", bookie=bookie_id
        )
        self._written_bytes = metrics.counter(
            "herdbook_bookie_written_bytes_total", "Bytes of those requests.", bookie=bookie_id
        )
        self._read_requests = metrics.counter(
            "herdbook_bookie_read_requests_total", "Reads answered.", bookie=bookie_id
        )
        self._read_bytes = metrics.counter(
            "herdbook_bookie_read_bytes_total", "Bytes of entries read.", bookie=bookie_id
        )
        self._upkeep_failures = metrics.counter(
            "herdbook_bookie_upkeep_failures_total",
            "Rounds of garbage collection and compaction that failed.",
            bookie=bookie_id,
        )
        self._sync_s = metrics.histogram(
            "herdbook_bookie_sync_seconds",
            "How long one sync of the journal took.",
            LATENCY_BOUNDS_S,
            bookie=bookie_id,
        )

    @property
    def taken(self) -> tuple[int, int]:
        """Entries and bytes since the start."""
        return self.taken_entries, self.taken_bytes

    def written(self, requests: int, size_bytes: int, syncs_s: Sequence[float]) -> None:
        """The journal's thread is through with what it took; it synced once a batch."""
        self._batches.add(len(syncs_s))
        self._requests.add(requests)
        self._written_bytes.add(size_bytes)
        self.taken_bytes += size_bytes
        for sync_s in syncs_s:
            self._sync_s.observe(sync_s)
            if sync_s > SLOW.sync_s:
                SLOW.note("sync", sync_s, waited="disk", bookie=self._id, requests=requests)

    def refused(self, status: Status) -> None:
        """An append was not taken."""
        counter = self._refusals.get(status)
        if counter is None:
            counter = self._refusals[status] = self._metrics.counter(
                "herdbook_bookie_refused_total",
                "Appends that were refused, by the status answered.",
                bookie=self._id,
                status=status.name.lower(),
            )
        counter.add()

    def read(self, size_bytes: int) -> None:
        """A read was answered with so many bytes."""
        self._read_requests.add()
        self._read_bytes.add(size_bytes)

    def upkeep_failed(self) -> None:
        """A round of garbage collection, or a compaction, ended with an error."""
        self._upkeep_failures.add()

    def watch(self, name: str, says: str, read: Callable[[], float]) -> None:
        """Let a number be looked at until `close`."""
        self._gauges.append(self._metrics.gauge(name, says, read, bookie=self._id))

    def close(self) -> None:
        """The bookie is gone: nobody looks at it any more."""
        for end in self._gauges:
            end()
        self._gauges.clear()
