"""The roles of one process: started in their order, ended in the opposite one.

Invariants:
- The other roles begin when the first one serves, because they need the bookies.
- A role that ends without being told to ends the process, after the others have ended in order.
- If an error of this project ends a role, it is printed in one line. Only unexpected errors have a
  traceback.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import (
    EngineError,
    ExtraMissing,
    FolderMismatch,
    FolderRolledBack,
    FormatTooNew,
    InvalidRequest,
    LevelTooNew,
    Unauthorized,
)
from engine.ports.clock import SystemClock
from engine.settling import keep_loaded
from engine.slow import SLOW, SlowSettings
from herdbook.finding import FILE_VARIABLE, URL_VARIABLE
from herdbook.node.growth import collecting
from herdbook.node.opening import FolderOpening
from herdbook.node.roles import OF_CLUSTER, OF_FOLDER, Service, write_client_file
from herdbook.node.settings import NodeSettings, Role

Tell = Callable[[Role, str], None]
"""Hears where a role serves, when it does."""
WRONG: Final = (
    InvalidRequest,
    ExtraMissing,
    FolderMismatch,
    FolderRolledBack,
    FormatTooNew,
    Unauthorized,
)
"""What another try does not mend: somebody has to."""


_TREES: Final = ("engine", "herd", "blobit", "broker", "herdbook")
_logger: Final = logging.getLogger(__name__)


class RoleEnded(EngineError):
    """A role ended without being told to. The message says why, as far as that is known."""


def line_of(error: BaseException) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def is_expected(error: BaseException) -> bool:
    """Whether an error is this project's or the system's, so that its message is enough."""
    trees = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return isinstance(error, OSError) or not trees.isdisjoint(_TREES)


def is_wrong(error: BaseException) -> bool:
    """Whether an error is one of what a node was told rather than of the moment.

    What a newer version wrote stays so, whatever an error makes of it.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, FormatTooNew | LevelTooNew):
        cause = cause.__cause__
    return cause is not None or isinstance(error, WRONG)


class Roles:
    """Roles that run, or are to run, in this process, on this event loop."""

    def __init__(
        self, settings: NodeSettings, roles: Sequence[Role], tell: Tell, *, once: str = ""
    ) -> None:
        self._once = once
        self._settings = settings
        self._roles = [role for role in Role if role in roles]
        self._tell = tell
        self._ends = {role: asyncio.Event() for role in self._roles}
        self._turns = {role: asyncio.Event() for role in self._roles}
        """Set when a role may begin, or need not any more."""
        self._serving: set[Role] = set()
        self.others: dict[str, str] = {}
        """Which processes of the node, beside this one, do not serve, and what they do instead."""
        self._tasks: dict[Role, asyncio.Task[None]] = {}
        self._collecting: asyncio.Task[None] | None = None
        self._told: set[Role] = set()
        """Roles whose failure was already reported or raised."""
        broker = settings.broker
        self._folder = (
            None
            if settings.clustered
            else FolderOpening(
                Path(settings.data), broker.discover, broker.on_alarm, settings.reserve_bytes
            )
        )

    async def run(self, ended: asyncio.Event) -> None:
        """Run them until `ended` is set, or each was told to end; raises why one failed."""
        told = msgspec.structs.asdict(self._settings.slow)
        SLOW.configure(SlowSettings(**told), SystemClock())
        with _client_of_own_store(self._settings):
            self._turns[self._roles[0]].set()
            for role in self._roles:
                self._tasks[role] = asyncio.create_task(self._run(role), name=role.value)
            waiting = asyncio.create_task(ended.wait())
            try:
                await self._until(waiting)
            finally:
                waiting.cancel()
                if self._collecting is not None:
                    self._collecting.cancel()
                for role in reversed(self._roles):
                    await self.end(role)

    async def end(self, role: Role) -> None:
        """End one of them, and wait until it has. May be called again."""
        self._ends[role].set()
        self._turns[role].set()
        task = self._tasks[role]
        if role not in self._serving:
            # It has promised nobody anything yet, and what it waits for may never come.
            task.cancel()
        await asyncio.wait((task,))
        error = None if task.cancelled() else task.exception()
        if error is not None and role not in self._told:
            # Another role's error is raised, and this one must not be lost.
            self._told.add(role)
            traced = None if is_expected(error) else error
            _logger.warning("%s ended: %s", role.value, line_of(error), exc_info=traced)

    async def _run(self, role: Role) -> None:
        def serving(address: str) -> None:
            self._serving.add(role)
            if len(self._serving) == len(self._roles):
                self._collect_garbage()
            for turn in self._turns.values():
                turn.set()
            self._tell(role, address)

        await self._turns[role].wait()
        if not self._ends[role].is_set():
            service = Service(
                self._settings,
                serving,
                self._ends[role],
                self._lacking,
                self._folder,
                self._once,
            )
            runs = OF_CLUSTER if self._settings.clustered else OF_FOLDER
            await runs[role](service)

    def _collect_garbage(self) -> None:
        """Exclude loaded modules, and those that statements load, from collections; start them."""
        if Role.HERD in self._roles:
            import herd.sql.session  # noqa: F401
        keep_loaded()
        self._collecting = asyncio.create_task(collecting(), name="collections of garbage")

    def _raise_of(self, role: Role, task: asyncio.Task[None]) -> None:
        """Raise the error of a role that failed; errors of the engine or the system unchanged."""
        error = task.exception()
        if error is None:
            return
        self._told.add(role)
        if isinstance(error, EngineError | OSError) or not is_expected(error):
            raise error
        raise RoleEnded(f"{role.value}: {line_of(error)}") from error

    def _lacking(self) -> str:
        here = {role.value: "starting" for role in self._roles if role not in self._serving}
        return ", ".join(f"{name} is {state}" for name, state in {**here, **self.others}.items())

    async def _until(self, waiting: asyncio.Task[bool]) -> None:
        """Wait for the end; raises why a role failed."""
        running = set(self._tasks.values())
        while running and not waiting.done():
            await asyncio.wait((waiting, *running), return_when=asyncio.FIRST_COMPLETED)
            for role, task in self._tasks.items():
                if task not in running or not task.done():
                    continue
                running.discard(task)
                told = self._ends[role].is_set()
                if not (told and task.cancelled()):
                    self._raise_of(role, task)
                if not told:
                    raise RoleEnded(f"{role.value} ended by itself")


@contextmanager
def _client_of_own_store(settings: NodeSettings) -> Iterator[None]:
    """Whatever this process opens meanwhile, it opens as a client of its own store."""
    named = {
        FILE_VARIABLE: str(write_client_file(settings).absolute()),
        URL_VARIABLE: settings.store,
    }
    before = {name: os.environ.pop(name, None) for name in named}
    os.environ.update(named)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
