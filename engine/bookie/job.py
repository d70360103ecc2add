"""A job of the journal: what one request wants written, and how it came out."""

from collections.abc import Callable, Sequence

from engine.bookie.segment import RECORD_HEADER_BYTES, Record
from engine.run import Run


class Job:
    """Runs of one request, or other records, on their way to the disk.

    Settled: `error` is None and `segment` and `offsets` say where each record and, behind those,
    each run begins; or
    `refused` says that the disk is full; or `error` says why nothing more will be written.
    """

    __slots__ = (
        "epoch",
        "error",
        "mark",
        "offsets",
        "records",
        "refused",
        "runs",
        "segment",
        "settle",
        "size_bytes",
    )

    def __init__(
        self,
        settle: "Callable[[Job], None]",
        runs: Sequence[Run] = (),
        records: Sequence[Record] = (),
    ) -> None:
        self.settle = settle
        self.runs = runs
        self.records = records
        self.segment = 0
        self.offsets: list[int] = []
        self.refused = False
        self.error: BaseException | None = None
        self.epoch = 0
        self.mark = False
        size_bytes = 0
        for run in runs:
            size_bytes += RECORD_HEADER_BYTES + len(run.table) + len(run.body)
        for record in records:
            size_bytes += record.size_bytes
        self.size_bytes = size_bytes
