"""A folder that a node serves, opened once for all of the node's roles.

Each of a folder's locks has one holder: the first opener of the folder that needs what the lock
protects. So a process that opens a folder twice can block itself.

Invariants:
- The roles of one process share one opening: what runs in this process runs for all of them.
- The first role that needs the folder opens it, and the last role that ends closes it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.ports.metrics import NO_METRICS, Metrics
from herd.sharing import Sharing

if TYPE_CHECKING:
    from herdbook.book import AsyncBook

_NAME: Final = "folder"


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """A folder that is open in this process, and its metrics."""

    book: "AsyncBook"
    metrics: Metrics


@asynccontextmanager
async def open_to_serve(
    folder: Path,
    discover: Mapping[str, tuple[str, ...]],
    on_alarm: tuple[str, ...],
    reserve_bytes: int = 0,
) -> AsyncIterator[OpenFolder]:
    """Open a folder in a server's process, as long as the block lasts.

    `discover` are commands that list the nodes of roll-outs, by name; `on_alarm` is a command for
    each alarm of a roll-out, empty for none. Both apply only while the tasks run in this process.
    Raises what `herdbook.open_async` does.
    """
    from broker.rollouts.alarming import Alarms, CommandHook
    from broker.rollouts.discovery import COMMAND, CommandDiscovery
    from engine.bookie.settings import BookieSettings
    from herd.settings import HerdSettings
    from herd.sql.query_processes import query_processes
    from herdbook.book import open_async
    from herdbook.process_measures import process_measured

    metrics = metrics_shown()
    # Queries leave as much of the disk free as one that was full needs to take new data again.
    kept_bytes = partial(BookieSettings().keeping(reserve_bytes).kept_bytes, full=True)
    async with (
        query_processes(HerdSettings().query_bytes, folder / "queries", kept_bytes) as pool,
        open_async(
            folder,
            discoveries={COMMAND: CommandDiscovery(discover)},
            alarms=Alarms(CommandHook(on_alarm) if on_alarm else None),
            metrics=metrics,
            reserve_bytes=reserve_bytes,
        ) as book,
    ):
        book.herd.query_pool = pool
        with process_measured(metrics):
            yield OpenFolder(book, metrics)


def metrics_shown() -> Metrics:
    """Metrics for Prometheus; none if its library is not installed."""
    from engine.errors import ExtraMissing
    from herdbook.metrics import PrometheusMetrics

    try:
        return PrometheusMetrics()
    except ExtraMissing:
        return NO_METRICS


class FolderOpening:
    """The folder `data`, which all of a node's roles open together."""

    def __init__(
        self,
        folder: Path,
        discover: Mapping[str, tuple[str, ...]],
        on_alarm: tuple[str, ...],
        reserve_bytes: int = 0,
    ) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._discover = discover
        self._on_alarm = on_alarm
        self._sharing: Sharing[OpenFolder] = Sharing()

    def use(self) -> AbstractAsyncContextManager[OpenFolder]:
        """The open folder, as long as the block lasts. Raises as `open_to_serve`."""
        return self._sharing.use(_NAME, self._opening)

    def _opening(self) -> AbstractAsyncContextManager[OpenFolder]:
        return open_to_serve(self._folder, self._discover, self._on_alarm, self._reserve_bytes)
