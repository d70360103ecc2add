"""Virtual time for a test of one component: seconds pass at once, the same in each run."""

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.simulation.loop import SimLoop, new_loop


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

    A slow machine then never exceeds a time-out. Tests marked `real_time` run as elsewhere.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if pyfuncitem.get_closest_marker("real_time") is not None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    virtually(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
