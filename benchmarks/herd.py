"""The scenarios of the subject `herd`, by name, in the order in which they run."""

from typing import Final

from benchmarks import herd_checkpoint, herd_opening, herd_reads, herd_updates
from benchmarks.ledger import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    "update-pk-one": herd_updates.update_one,
    "update-pk-many": herd_updates.update_many,
    "update-pk-threads": herd_updates.update_threads,
    "insert-batch": herd_updates.insert_batch,
    "update-pk-one-3": herd_updates.update_one_3,
    "update-pk-many-3": herd_updates.update_many_3,
    "get-kv": herd_reads.get_kv,
    "select-pk": herd_reads.select_pk,
    "scan-aggregate": herd_reads.scan_aggregate,
    "checkpoint": herd_checkpoint.checkpoint,
    "open-1000-tables": herd_opening.open_tables,
    "open-ten-million": herd_opening.open_rows,
}
