"""What a demonstration did, as a table for people and as one JSON object for programs.

Invariants:
- Both say the same: the table is made from the numbers of the object.
- `ok` is true only if files were stored and every one of them came back equal.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from herdbook.walk import Skipped

KINDS_SHOWN_MAX: Final = 6
NAMES_SHOWN_MAX: Final = 10
MEGABYTE: Final = 1_000_000


@dataclass
class Report:
    """The numbers of one demonstration. Times in seconds, sizes in bytes."""

    folder: str
    data: str
    bookies: int
    killed: str = ""
    ids: str = ""
    files: int = 0
    size_bytes: int = 0
    entries: int = 0
    ledgers: int = 0
    ledgers_to_repair: int = 0
    files_after_kill: int = 0
    store_s: float = 0.0
    read_s: float = 0.0
    put_s: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[str] = field(default_factory=Counter)
    skipped: list[Skipped] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    read_back: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything that was stored came back as it was."""
        return bool(self.files) and self.read_back == self.files and not self.different

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "folder": self.folder,
            "data": self.data,
            "ok": self.ok,
            "files": self.files,
            "bytes": self.size_bytes,
            "entries": self.entries,
            "ledgers": self.ledgers,
            "ledgers_to_repair": self.ledgers_to_repair,
            "bookies": self.bookies,
            "killed": self.killed,
            "files_after_kill": self.files_after_kill,
            "store_seconds": round(self.store_s, 3),
            "store_bytes_per_second": _rate(self.size_bytes, self.store_s),
            "put_p50_ms": round(1000 * quantile(self.put_s, 0.5), 3),
            "put_p99_ms": round(1000 * quantile(self.put_s, 0.99), 3),
            "read_seconds": round(self.read_s, 3),
            "read_bytes_per_second": _rate(self.size_bytes, self.read_s),
            "read_back": self.read_back,
            "ids": self.ids,
            "different": self.different,
            "skipped": [skip._asdict() for skip in self.skipped],
        }

    def show(self, console: Console) -> None:
        """Print the tables and the verdict."""
        console.print(self._stored())
        console.print(self._figures())
        for skip in self.skipped[:NAMES_SHOWN_MAX]:
            console.print(f"not stored: {skip.path}: {skip.reason}", markup=False)
        if len(self.skipped) > NAMES_SHOWN_MAX:
            console.print(f"not stored: {len(self.skipped) - NAMES_SHOWN_MAX} more")
        for name in self.different[:NAMES_SHOWN_MAX]:
            console.print(f"DIFFERENT: {name}", markup=False, style="bold red")
        if self.ids:
            console.print(f"The ids of the files: {self.ids}", markup=False, soft_wrap=True)
        if self.ok:
            console.print(f"All {self.files:,} files came back byte for byte.", style="bold green")
        else:
            wrong = max(len(self.different), self.files - self.read_back)
            console.print(f"{wrong:,} of {self.files:,} files differ.", style="bold red")

    def _stored(self) -> Table:
        table = Table(title=f"Stored from {self.folder}")
        table.add_column("kind")
        table.add_column("files", justify="right")
        table.add_column("MB", justify="right")
        shown = self.kinds.most_common(KINDS_SHOWN_MAX)
        for kind, count in shown:
            table.add_row(kind, f"{count:,}", f"{self.kind_bytes[kind] / MEGABYTE:,.1f}")
        others = self.files - sum(count for _, count in shown)
        if others:
            known = sum(self.kind_bytes[kind] for kind, _ in shown)
            table.add_row("others", f"{others:,}", f"{(self.size_bytes - known) / MEGABYTE:,.1f}")
        table.add_section()
        table.add_row("all", f"{self.files:,}", f"{self.size_bytes / MEGABYTE:,.1f}")
        return table

    def _copies(self) -> str:
        before = [str(self.bookies)] if self.files_after_kill < self.files else []
        after = [str(self.bookies - 1)] if self.files_after_kill else []
        return ", then ".join(before + after)

    def _figures(self) -> Table:
        numbers = self.as_json()
        table = Table(show_header=False)
        table.add_column("what")
        table.add_column("value", justify="right")
        rows = {
            "ledgers": f"{self.ledgers:,}",
            "entries": f"{self.entries:,}",
            "copies of each entry": self._copies(),
            "bookie killed on the way": self.killed or "none",
            "files stored after that": f"{self.files_after_kill:,}",
            "ledgers that wait for repair": f"{self.ledgers_to_repair:,}",
            "stored in": f"{self.store_s:.2f} s",
            "storing": f"{numbers['store_bytes_per_second'] / MEGABYTE:,.1f} MB/s",
            "put, median": f"{numbers['put_p50_ms']:.1f} ms",
            "put, 99 of 100 within": f"{numbers['put_p99_ms']:.1f} ms",
            "read back in": f"{self.read_s:.2f} s",
            "reading": f"{numbers['read_bytes_per_second'] / MEGABYTE:,.1f} MB/s",
        }
        for what, value in rows.items():
            table.add_row(what, value)
        return table


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of all values do not exceed; 0 of none.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _rate(size_bytes: int, seconds: float) -> float:
    return round(size_bytes / seconds, 1) if seconds > 0 else 0.0
