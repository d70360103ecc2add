"""A child process that does not outlive its parent, however that one ends (Linux)."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def ending_with(parent: int) -> Callable[[], None]:
    """What a child calls first, so that the system kills it with the process `parent`.

    Made before a fork: a child between fork and exec does as little as it can. Elsewhere than on
    Linux it does nothing.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
