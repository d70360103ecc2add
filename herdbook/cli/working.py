"""What a person sees while a command works for longer than a second.

Invariants:
- Only a terminal is written to, on standard error, and nothing of it is left there.
- Quick work shows nothing, and loads nothing for it.
- What is written `aside` of it stays.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Final = 1.0
"""So long nothing is shown."""


class Working:
    """A bar without a known end, and for how long; a context manager.

    with Working("importing") as working:
        working.done(count)
    """

    def __init__(self, what: str, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._count = ""
        self._bar: Progress | None = None
        self._over = False
        self._turn = threading.Lock()
        self._timer: threading.Timer | None = None
        if sys.stderr.isatty():
            self._timer = threading.Timer(patience_s, self.show)
            self._timer.daemon = True

    def done(self, count: int) -> None:
        """So many are done by now."""
        self._count = f"{count:,}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], count=self._count)

    def show(self) -> None:
        """Show it now, unless it is over."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:>12}"), BarColumn())
        bar = Progress(
            *columns,
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with self._turn:
            if not self._over:
                bar.add_task(self._what, total=None, count=self._count)
                self._bar = bar
                bar.start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Take it away while the block writes."""
        with self._turn:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def __enter__(self) -> Self:
        global _shown
        _shown = self
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _shown
        _shown = None
        if self._timer is not None:
            self._timer.cancel()
        with self._turn:
            self._over = True
            if self._bar is not None:
                self._bar.stop()


_shown: Working | None = None


@contextmanager
def aside() -> Iterator[None]:
    """Around what is written while something may be shown."""
    shown = _shown
    if shown is None:
        yield
        return
    with shown.pause():
        yield
