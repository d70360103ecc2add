"""What came of the story, as a table for people and as one JSON object for programs.

Invariants:
- Both say the same; `ok` is true only if every check holds.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from herdbook.mailing.gathering import TENANTS

if TYPE_CHECKING:
    from herdbook.mailing.spark import TenantLine

MEGABYTE: Final = 1_000_000
STEPS: Final = {
    "gather": "messages laid out",
    "cluster": "ZooKeeper and three nodes up",
    "spark": "a session of Spark begun",
    "load": "loaded into the bucket by Spark, in tasks",
    "tasks": "sent by tasks of three tenants on two workers",
    "report": "read again by Spark and hashed, in tasks",
}


@dataclass
class StoryReport:
    """The numbers. Times in seconds, sizes in bytes."""

    source: str
    messages: int = 0
    size_bytes: int = 0
    loaded: int = 0
    tasks: int = 0
    finished: int = 0
    left: int = 0
    different: int = 0
    failover_s: float = 0.0
    whole_s: float = 0.0
    killed: dict[str, str] = field(default_factory=dict)
    most_running: dict[str, int] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    lines: "list[TenantLine]" = field(default_factory=list)
    sql: list[tuple[Any, ...]] = field(default_factory=list)
    accounts: list[tuple[Any, ...]] = field(default_factory=list)

    def checks(self) -> dict[str, bool]:
        """What has to hold, and whether it does."""
        spark = [tuple(line) for line in self.lines]
        return {
            "every message was loaded": 0 < self.loaded == self.messages,
            "every message was sent": self.left == 0 and bool(self.sql),
            "every byte is what was sent": self.different == 0 and bool(spark),
            "Spark's report equals SQL's": spark == self.sql,
            "the accounts equal both": [line[:3] for line in self.sql] == self.accounts,
            "the totals equal the source": (
                sum(line[1] for line in self.sql),
                sum(line[2] for line in self.sql),
            )
            == (self.messages, self.size_bytes),
            "every task is finished": 0 < self.tasks == self.finished,
            "no tenant had more tasks run than it may": all(
                self.most_running.get(tenant, 0) <= limit for tenant, limit in TENANTS.items()
            ),
            "two nodes were killed on the way": set(self.killed) == {"bookie", "leader"},
        }

    @property
    def ok(self) -> bool:
        """Whether all of that holds."""
        return all(self.checks().values())

    def as_json(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "source": self.source,
            "ok": self.ok,
            "messages": self.messages,
            "bytes": self.size_bytes,
            "tasks": self.tasks,
            "killed": self.killed,
            "failover_s": round(self.failover_s, 3),
            "seconds": {name: round(took, 3) for name, took in self.took_s.items()},
            "whole_s": round(self.whole_s, 3),
            "tenants": [line._asdict() for line in self.lines],
            "checks": self.checks(),
        }

    def show(self, console: Console) -> None:
        """The report, in three tables."""
        took = Table("what", "seconds", title=f"{self.source}: {self._size()}", title_style="bold")
        for name, text in STEPS.items():
            took.add_row(text, f"{self.took_s.get(name, 0):.1f}")
        took.add_row("all of it", f"{self.whole_s:.1f}", style="bold")
        took.columns[1].justify = "right"
        console.print(took)
        console.print(self._rates())
        tenants = Table("tenant", "messages", "MB", "lines", "words", "at most at a time")
        for line in self.lines:
            most = f"{self.most_running.get(line.tenant, 0)} of {TENANTS.get(line.tenant, 0)}"
            size = f"{line.size / MEGABYTE:.2f}"
            tenants.add_row(
                line.tenant, f"{line.messages:,}", size, f"{line.lines:,}", f"{line.words:,}", most
            )
        for column in tenants.columns[1:]:
            column.justify = "right"
        console.print(tenants)
        for text, holds in self.checks().items():
            console.print(f"  [green]✓[/] {text}" if holds else f"  [bold red]✗ {text}[/]")

    def _size(self) -> str:
        return f"{self.messages:,} messages, {self.size_bytes / MEGABYTE:.1f} MB"

    def _rates(self) -> str:
        load_s, tasks_s = self.took_s.get("load", 0), self.took_s.get("tasks", 0)
        if not load_s or not tasks_s:
            return ""
        return (
            f"loaded {self.size_bytes / MEGABYTE / load_s:.1f} MB/s; sent "
            f"{self.messages / tasks_s:.0f} messages/s, in {self.tasks} tasks; another broker led "
            f"{self.failover_s:.1f} s after the leader's node was killed"
        )
