"""Virtual time for a test of one component: seconds pass at once, the same in each run."""

import asyncio
import inspect
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final

import pytest

from tests.simulation.loop import SimLoop, new_loop

_REAL_S_MAX: Final = 120


def virtually(script: Coroutine[Any, Any, None], until_s: float = 2_000.0) -> None:
    """Run a coroutine in virtual time."""
    loop = new_loop(1)
    try:
        loop.run(script, until_s=until_s)
    finally:
        loop.close()


async def elapse(seconds: float) -> None:
    """Let virtual time pass."""
    assert isinstance(asyncio.get_running_loop(), SimLoop), "real time is not slept away"
    await asyncio.sleep(seconds)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the `async def` tests of a folder in virtual time, for the folder's `conftest.py`.

    So no test times out because the machine is slow. Tests marked `real_time` run as elsewhere.
    One that never lets time pass is ended by an alarm.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if pyfuncitem.get_closest_marker("real_time") is not None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_REAL_S_MAX)
    try:
        virtually(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True


def _too_long(number: int, frame: FrameType | None) -> None:
    raise AssertionError(f"the test has run for {_REAL_S_MAX} s of real time")
