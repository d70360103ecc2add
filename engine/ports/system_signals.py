"""How a process is told to end: by SIGTERM or SIGINT, twice if it is urgent; by SIGHUP it is told
to read secrets, certificates and users again."""

import asyncio
import signal
from collections.abc import Callable

from engine.ports.hangup import early
from engine.ports.renewing import renew_all


def renewed_by_signal(renew: Callable[[], None] = renew_all) -> None:
    """From now on SIGHUP lets this process, or whom `renew` tells, read files again.

    So does one that came before, if `hear_early` was called.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, renew)
    if early:
        early.clear()
        loop.call_soon(renew)


def ended_by_signals() -> asyncio.Event:
    """The first SIGTERM or SIGINT sets the event; from then on they do what they always do.

    SIGHUP makes the process read files again, until it has ended.
    """
    renewed_by_signal()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end() -> None:
        ended.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    return ended
