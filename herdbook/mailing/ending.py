"""How a demonstration ends before its time: in order by the first Ctrl-C, by the second at once.

Invariants:
- The first signal cancels the task, and ends what it may wait for in a thread; also what a thread
  starts only then. Whatever fails for that reason is the cancellation.
- After the second one nothing runs that was started here, and the folder is gone.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from herdbook.mailing.own_folder import remove

INTERRUPTED: Final = 130
SAID: Final = "ending ...; Ctrl-C again ends at once"
_AGAIN_S: Final = 0.25
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """What the first signal does; more may be added. Made by `ending_by_signals`."""

    def __init__(self, task: "asyncio.Task[Any]", say: Callable[[str], None]) -> None:
        self.also: list[Callable[[], None]] = []
        self.begun = False
        self.over = False
        self._task = task
        self._say = say

    def begin(self) -> None:
        """Say so, and end the task."""
        self.begun = True
        self._say(SAID)
        self._task.cancel()
        self._cut_short()

    def _cut_short(self) -> None:
        if not self.over:
            for call in self.also:
                call()
            asyncio.get_running_loop().call_later(_AGAIN_S, self._cut_short)


@contextmanager
def ending_by_signals(folder: Path, say: Callable[[str], None]) -> Iterator[Ending]:
    """Let signals end the task that runs, as long as the block lasts."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    ending = Ending(task, say)
    came = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            end_at_once(folder)
        came = True
        loop.call_soon_threadsafe(ending.begin)

    # A command in a shell's background is started with SIGINT ignored, and keeps to that.
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, hear) for each in heard}
    try:
        yield ending
    except Exception as error:
        if ending.begun:
            raise asyncio.CancelledError from error
        raise
    finally:
        ending.over = True
        for each, handler in before.items():
            signal.signal(each, handler)


def children() -> set[int]:
    """The processes that this one has started and that still run; none where there is no /proc."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.add(int(process.name))
    return found


def end(processes: set[int]) -> None:
    """End processes at once."""
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def end_at_once(folder: Path) -> None:
    """End this process and its children, which end theirs."""
    started = children()
    end(started)
    for each in started:
        with suppress(ChildProcessError):
            os.waitpid(each, 0)
    remove(folder)
    os._exit(INTERRUPTED)
