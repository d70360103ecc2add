"""CREATE and DROP TABLESPACE where the owner of a folder runs all its tablespaces by itself.

Invariants:
- A tablespace is marked before anything of it goes; what is marked is never opened again, and
  whoever opens the folder next removes what was left of it.
"""

import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.ledger.client import LedgerClient
from engine.ports.workers import Workers
from herd.errors import NameTaken, NotSupportedError
from herd.nodes.directory import Directory
from herd.nodes.dropping import sweep_dropped
from herd.nodes.facts import SpaceFact

if TYPE_CHECKING:
    from herd.store import AsyncHerd

_HINT = "a folder's tablespaces run where it is open; nodes of a cluster have replicas"


class FolderSpaces:
    """The commands of `herd.nodes.commands.SpaceCommands` that make sense in a folder."""

    def __init__(self, herd: "AsyncHerd") -> None:
        self._herd = herd

    async def spaces(self) -> Iterable[str]:
        """The names of all tablespaces, also of those that are dropped and not removed yet."""
        return sorted({*await self._herd.names(), *self._herd.dropped})

    async def create(
        self, name: str, *, expected: int = 1, nodes: Iterable[str] = (), leader: str = ""
    ) -> None:
        """Make a tablespace. Raises `NameTaken`, `ProgrammingError`, `NotSupportedError`."""
        if expected != 1 or leader or list(nodes):
            raise NotSupportedError("replicas of a tablespace in a folder", hint=_HINT)
        if name.lower() in await self._herd.names():
            raise NameTaken(f"there is a tablespace {name} already", hint="take a new name")
        await self._herd.make(name)

    async def drop(self, name: str) -> None:
        """End a tablespace and remove all that it holds. Raises `ProgrammingError`."""
        await self._herd.drop(name)

    async def until_led(self, name: str, timeout_ms: int, node: str = "") -> str:
        """Nothing to wait for."""
        return ""

    async def set_expected(self, name: str, expected: int | None) -> None:
        """Refused."""
        raise NotSupportedError("replicas of a tablespace in a folder", hint=_HINT)

    async def set_replicas(self, name: str, nodes: Iterable[str]) -> None:
        """Refused."""
        raise NotSupportedError("replicas of a tablespace in a folder", hint=_HINT)

    async def add_replica(self, name: str, node: str) -> None:
        """Refused."""
        raise NotSupportedError("replicas of a tablespace in a folder", hint=_HINT)

    async def remove_replica(self, name: str, node: str) -> None:
        """Refused."""
        raise NotSupportedError("replicas of a tablespace in a folder", hint=_HINT)

    async def move_leader(self, name: str, node: str) -> None:
        """Refused."""
        raise NotSupportedError("leaders of a tablespace in a folder", hint=_HINT)


async def mark_dropped(client: LedgerClient, name: str) -> SpaceFact:
    """Mark a tablespace as dropped. Raises `ProgrammingError` if it does not exist.

    If it is marked already, an earlier drop was interrupted.
    """
    directory = Directory(client.store, client.rng)
    found = await directory.get(name)
    if found is not None and found.dropped:
        return found
    return await directory.change(name, lambda fact: msgspec.structs.replace(fact, dropped=True))


async def remove_marked(
    client: LedgerClient, workers: Workers, folder: Path, name: str, fact: SpaceFact
) -> None:
    """Remove all that a marked tablespace left, which nobody runs, and give its name back."""
    await sweep_dropped(client, name, fact.uuid)
    for each in (folder / name, folder / f"{name}.checkpoint"):
        await workers.run(partial(shutil.rmtree, each, ignore_errors=True))
    await Directory(client.store, client.rng).forget(name, fact.uuid)
