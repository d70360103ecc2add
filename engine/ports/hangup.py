"""SIGHUP before a server can do what it asks for: nothing is imported here that takes long.

Invariants:
- From `hear_early` on SIGHUP does not end this process, and the first one is not forgotten.
"""

import signal
from typing import Final

early: Final[list[int]] = []
"""Those that came, and that nobody has taken note of yet: see `renewed_by_signal`."""


def hear_early() -> None:
    """The first call of a server's process."""
    # A handler and not SIG_IGN: processes that are started from here must not inherit it.
    signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
