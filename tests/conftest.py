"""What every test shares: coroutine tests run on a fresh event loop, with a deadline."""

import asyncio
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TEST_DEADLINE_S = int(os.environ.get("HERDBOOK_TEST_DEADLINE_S", "120"))
"""The soak's full sizes take longer."""

LONG = (
    "tests/simulation/",
    "tests/acceptance/",
    "tests/spark/",
    "tests/docs/test_pages",
    "tests/blobit/oracle/",
    "tests/herd/test_differential",
    "test_kill",
)
"""What takes minutes in one file. Begun last it would run on alone, with idle processes beside."""

# One and the same examples in every run; `make soak` draws others.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("soak", deadline=None, max_examples=2_000)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; within them and among the others the order stays."""
    items.sort(key=lambda item: not any(part in item.nodeid for part in LONG))


ONE_PROCESS = ("tests/spark/", "tests/console/")
"""A session of Spark, and a browser, take seconds to start: all tests of one share it."""


class FoldersTogether(LoadScopeScheduling):  # type: ignore[misc]
    """A module's tests run in one process, and those of some folders, too."""

    def _split_scope(self, nodeid: str) -> str:
        for folder in ONE_PROCESS:
            if nodeid.startswith(folder):
                return folder
        return str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Who runs what, where modules are shared out."""
    return FoldersTogether(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def _unchanged_environment() -> Iterator[None]:
    """A test that leaves a setting in the environment fails: later tests would read it."""
    before = _settings_of_the_environment()
    yield
    assert _settings_of_the_environment() == before


def _settings_of_the_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HERDBOOK_")}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test to its end; one that hangs fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        async with asyncio.timeout(TEST_DEADLINE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True
