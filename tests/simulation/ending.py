"""Ends a run: closes what its processes left unfinished, without any output.

Invariants:
- The interpreter's garbage collector has no effect: no cycle is collected during a run.
- Nothing of a run is left for a later one: its coroutines are closed on its own loop.
"""

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRIES: Final = 100
"""How often a coroutine may await something more in its `finally` blocks."""


@contextmanager
def in_silence() -> Iterator[None]:
    """Discard errors of what is ended by force, so that no log keeps their frames."""
    heard, disabled = sys.unraisablehook, logging.root.manager.disable
    sys.unraisablehook = lambda unraisable: None
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logging.disable(disabled)
        sys.unraisablehook = heard


@contextmanager
def without_collector() -> Iterator[None]:
    """Cycles are collected after the run, so that finalisers never run at random moments."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        with in_silence():
            gc.collect()
        if was_enabled:
            gc.enable()


def end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Close the coroutines of all tasks of a closed loop that have not ended."""
    # What they ask for in their `finally` blocks is this loop, and no new one of the interpreter's.
    asyncio._set_running_loop(loop)
    try:
        with in_silence():
            ended: set[asyncio.Task[object]] = set()
            while tasks := asyncio.all_tasks(loop) - ended:
                ended |= tasks
                for task in tasks:
                    _close(task)
    finally:
        asyncio._set_running_loop(None)


def _close(task: "asyncio.Task[object]") -> None:
    coroutine = task.get_coro()
    for _ in range(_TRIES):
        try:
            coroutine.close()
            return
        except RuntimeError:
            # It awaits something more: it is told again.
            continue
        except BaseException:
            return
