"""How often the interpreter lets threads take turns, while something of ours is open.

Beside a thread that only computes, an append would otherwise wait for several turns of 5 ms. Where
much is copied, by several threads of ours at once, short turns are dear: each of them takes the
interpreter from the others in the middle of a copy, and a hand-over costs more than what was copied
meanwhile. So as long as that goes on turns are as long as they were before.

Invariants:
- The interval is set back when the last who asked for another one is done.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 50e-6

_asked: list[float] = []
_copying: list[object] = []
_before_s = 0.0


@contextmanager
def switching_every(interval_s: float | None) -> Iterator[None]:
    """Let threads take turns that often as long as the block lasts; None changes nothing."""
    global _before_s
    if interval_s is None:
        yield
        return
    if not _asked:
        _before_s = sys.getswitchinterval()
    _asked.append(interval_s)
    _settle()
    try:
        yield
    finally:
        _asked.remove(interval_s)
        _settle()


@contextmanager
def long_turns() -> Iterator[None]:
    """Let threads take turns as if nothing of ours were open, as long as the block lasts."""
    _copying.append(None)
    _settle_if_asked()
    try:
        yield
    finally:
        _copying.pop()
        _settle_if_asked()


def _settle_if_asked() -> None:
    if _asked and len(_copying) < 2:
        _settle()


def _settle() -> None:
    interval_s = min(_asked, default=_before_s)
    lasting_s = max(interval_s, _before_s) if _copying else interval_s
    # The interpreter cuts to whole microseconds, and 1e-6 * 50 lies just under 50e-6.
    sys.setswitchinterval(lasting_s + 5e-7)
