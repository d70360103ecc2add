"""Generated statements, run here, in SQLite and in DuckDB, and compared."""

from tests.herd.differential.running import Tally, run_seed
from tests.herd.differential.statements import Generator, Statement
from tests.herd.differential.three import Disagreement, Three

__all__ = ["Disagreement", "Generator", "Statement", "Tally", "Three", "run_seed"]
