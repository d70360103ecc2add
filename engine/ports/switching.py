"""How often the interpreter lets threads take turns, while something of ours is open.

Beside a thread that only computes, an append would otherwise wait for several turns of 5 ms.

Invariants:
- The interval is set back when the last who asked for another one is done.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 50e-6

_asked: list[float] = []
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
    sys.setswitchinterval(min(_asked))
    try:
        yield
    finally:
        _asked.remove(interval_s)
        sys.setswitchinterval(min(_asked, default=_before_s))
