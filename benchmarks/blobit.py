"""The scenarios of the subject `blobit`, by name, in the order in which they run."""

from typing import Final

from benchmarks import blobit_data, blobit_names
from benchmarks.ledger import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    "64k": blobit_data.small,
    "64m": blobit_data.big,
    "64m-grpc": blobit_data.big_grpc,
    "4k": blobit_names.tiny,
    "list-100k": blobit_names.listing,
    "first-byte": blobit_data.first_byte,
}
