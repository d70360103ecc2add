"""One number, with the machine's limit for the same work beside it.

Invariants:
- A limit was measured in the same run on the same folder; where none makes sense it is None.
- `ratio_limit` is value / limit: near 1 is near the machine's limit, for rates and times alike.
- A peer did the same work in the same run on the same folder; `ratio_<peer>` is value / peer's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

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
    peers: Mapping[str, float] = field(default_factory=dict)
    """What others reach with the same work, by their name."""
    asked: str = ""
    """What was asked of the machine that it does not do by itself."""

    @property
    def ratio_limit(self) -> float | None:
        """The value as a share of the limit."""
        return round(self.value / self.limit, 4) if self.limit else None

    def as_json(self) -> str:
        """One JSON object on one line."""
        left_out = {"peers"} if self.asked else {"peers", "asked"}
        own = {name: value for name, value in asdict(self).items() if name not in left_out}
        ratios = {f"ratio_{name}": self.ratio(name) for name in self.peers}
        return json.dumps({**own, "ratio_limit": self.ratio_limit, **self.peers, **ratios})

    def ratio(self, peer: str) -> float | None:
        """The value as a share of a peer's; None where that one is not there."""
        reached = self.peers.get(peer)
        return round(self.value / reached, 4) if reached else None


def show(results: Sequence[Result]) -> None:
    """Print the results for people."""
    table = Table("scenario", title=f"benchmarks {results[0].subject}" if results else None)
    for name in ("value", "unit", "limit", "of the limit"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    peers = sorted({name for result in results for name in result.peers})
    for name in peers:
        table.add_column(name, justify="right")
        table.add_column(f"of {name}", justify="right")
    for result in results:
        limit = "" if result.limit is None else _number(result.limit)
        share = "" if result.ratio_limit is None else f"{result.ratio_limit:.2f}"
        beside = [text for name in peers for text in _beside(result, name)]
        table.add_row(result.scenario, _number(result.value), result.unit, limit, share, *beside)
    Console().print(table)


def _beside(result: Result, peer: str) -> tuple[str, str]:
    ratio = result.ratio(peer)
    return ("", "") if ratio is None else (_number(result.peers[peer]), f"{ratio:.2f}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3f}"
