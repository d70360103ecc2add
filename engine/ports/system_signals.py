"""How a process is told to end: by SIGTERM or SIGINT, twice if it is urgent."""

import asyncio
import signal


def ended_by_signals() -> asyncio.Event:
    """The first SIGTERM or SIGINT sets the event; from then on they do what they always do."""
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
