"""One number, with the machine's limit for the same work beside it.

Invariants:
- A limit was measured in the same run on the same folder; where none makes sense it is None.
- `ratio_limit` is value / limit: near 1 is near the machine's limit, for rates and times alike.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """What one scenario measured."""

    subject: str
    scenario: str
    value: float
    unit: str
    limit: float | None

    @property
    def ratio_limit(self) -> float | None:
        """The value as a share of the limit."""
        return round(self.value / self.limit, 4) if self.limit else None

    def as_json(self) -> str:
        """One JSON object on one line."""
        return json.dumps({**asdict(self), "ratio_limit": self.ratio_limit})


def show(results: Sequence[Result]) -> None:
    """Print the results for people."""
    table = Table("scenario", title=f"benchmarks {results[0].subject}" if results else None)
    for name in ("value", "unit", "limit", "of the limit"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    for result in results:
        limit = "" if result.limit is None else _number(result.limit)
        share = "" if result.ratio_limit is None else f"{result.ratio_limit:.2f}"
        table.add_row(result.scenario, _number(result.value), result.unit, limit, share)
    Console().print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3f}"
