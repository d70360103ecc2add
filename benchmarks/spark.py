"""The scenarios of the subject `spark`, by name, in the order in which they run."""

from typing import Final

from benchmarks import spark_blobs, spark_reading, spark_writing
from benchmarks.ledger import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    "read": spark_reading.read,
    "read-blobs": spark_blobs.read_blobs,
    "write-table": spark_writing.write_table,
}
