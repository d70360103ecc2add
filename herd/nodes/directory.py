"""The facts of tablespaces, and their settings, in the metadata store, read and changed.

Invariants:
- A change is a pure function of the current fact; it is made again for the newer fact if another
  process was quicker.
- A change whose reply was lost is found by its token, and not made twice.
"""

import random
import re
from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import KeyExists, MetadataUnavailable, VersionConflict
from engine.metadata.contract import MetadataStore
from engine.metadata.restoring import check_not_under_way
from herd.errors import NameTaken, OperationalError, ProgrammingError
from herd.nodes.facts import (
    REPLICAS_MAX,
    SETTINGS,
    SPACES,
    SettingsFact,
    SpaceFact,
    decode_settings,
    decode_space,
    encode_fact,
)

Change = Callable[[SpaceFact], SpaceFact]
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_ATTEMPTS_MAX: Final = 64


class Directory:
    """The tablespaces of a cluster. Every method raises `MetadataUnavailable`, of the engine."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self.store = store
        self._rng = rng

    async def names(self) -> list[str]:
        """All names that are taken, in order."""
        return await self.store.children(SPACES)

    async def get(self, name: str) -> SpaceFact | None:
        """A tablespace's fact, also of one that is being dropped; None if there is none."""
        return (await self._read(name))[0]

    async def find(self, name: str) -> SpaceFact:
        """The fact of a tablespace that is there. Raises `ProgrammingError`."""
        fact = await self.get(name.lower())
        if fact is None or fact.dropped:
            known = ", ".join(await self.names()) or "none yet"
            raise ProgrammingError(f"there is no tablespace {name}", hint=f"there are {known}")
        return fact

    async def settings(self) -> SettingsFact:
        """The settings of the cluster. Raises `CannotRead`, `FormatTooNew`."""
        return (await self._settings())[0]

    async def set_default_replicas(self, count: int) -> SettingsFact:
        """Change how many replicas a tablespace without a number of its own should have.

        Raises `ProgrammingError`, and as `settings`.
        """
        checked_count(count)
        for _ in range(_ATTEMPTS_MAX):
            found, version = await self._settings()
            if found.replicas == count:
                return found
            wanted = msgspec.structs.replace(found, replicas=count)
            try:
                if version < 0:
                    await self.store.create(SETTINGS, encode_fact(wanted))
                else:
                    await self.store.set(SETTINGS, encode_fact(wanted), version)
                return wanted
            except (KeyExists, VersionConflict, MetadataUnavailable):
                # Another process was quicker, or the reply was lost: read again to find out.
                continue
        raise MetadataUnavailable("the settings of tablespaces could not be changed")

    async def create(self, name: str, fact: SpaceFact) -> SpaceFact:
        """Name a new tablespace.

        Raises `ProgrammingError`, `NameTaken`, `OperationalError`, `Unavailable` while a backup is
        being restored into the store.
        """
        check_name(name)
        await check_not_under_way(self.store)
        wanted = msgspec.structs.replace(fact, token=self._rng.getrandbits(63))
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self.store.create(_key(name), encode_fact(wanted))
                return wanted
            except KeyExists:
                found = await self.get(name)
            except MetadataUnavailable:
                # It may be there: if it is, it has this token.
                found = await self.get(name)
            if found is None:
                continue
            if found.token == wanted.token:
                return found
            if found.restoring:
                raise NameTaken(f"tablespace {name} is being restored", hint="take a new name")
            if found.dropped:
                raise OperationalError(
                    f"the tablespace {name} before this one is still being removed",
                    hint="try again in a moment",
                )
            raise NameTaken(f"there is a tablespace {name} already", hint="take a new name")
        raise MetadataUnavailable(f"tablespace {name} could not be named")

    async def change(self, name: str, change: Change) -> SpaceFact:
        """Change a fact; what it is then. A change that changes nothing is written nowhere.

        Raises `ProgrammingError` for a tablespace that is not there, and what `change` raises.
        """
        token = self._rng.getrandbits(63)
        for _ in range(_ATTEMPTS_MAX):
            found, version = await self._read(name)
            if found is not None and found.token == token:
                return found
            if found is None or found.dropped:
                raise ProgrammingError(f"there is no tablespace {name}")
            wanted = change(found)
            if wanted == found:
                return found
            wanted = msgspec.structs.replace(wanted, token=token, epoch=found.epoch + 1)
            try:
                await self.store.set(_key(name), encode_fact(wanted), version)
                return wanted
            except (VersionConflict, MetadataUnavailable):
                # Somebody was quicker, or the reply was lost: the token tells.
                continue
        raise MetadataUnavailable(f"the fact of tablespace {name} could not be changed")

    async def resume(self, name: str) -> SpaceFact:
        """Have the nodes of a suspended tablespace run it again; what its fact is then.

        Raises `ProgrammingError` for a tablespace that is not there.
        """

        def resumed(fact: SpaceFact) -> SpaceFact:
            return msgspec.structs.replace(fact, suspended=False) if fact.suspended else fact

        return await self.change(name, resumed)

    async def settle(self, name: str, uuid: str, *, kept: bool) -> bool:
        """End a restoration: from now on the tablespace is there, or is one that was dropped.

        Whether it is there: whoever settles it first decides.
        """
        token = self._rng.getrandbits(63)
        for _ in range(_ATTEMPTS_MAX):
            found, version = await self._read(name)
            if found is None or found.uuid != uuid:
                return False
            if not found.restoring:
                return not found.dropped
            wanted = msgspec.structs.replace(
                found, restoring=False, dropped=not kept, token=token, epoch=found.epoch + 1
            )
            try:
                await self.store.set(_key(name), encode_fact(wanted), version)
                return kept
            except (VersionConflict, MetadataUnavailable):
                continue
        raise MetadataUnavailable(f"the restoration of tablespace {name} could not be ended")

    async def forget(self, name: str, uuid: str) -> None:
        """Give a dropped tablespace's name back, if it is still that one's."""
        found, version = await self._read(name)
        if found is not None and found.dropped and found.uuid == uuid:
            try:
                await self.store.delete(_key(name), version)
            except VersionConflict:
                return

    async def _settings(self) -> tuple[SettingsFact, int]:
        """The settings, and the version of their key; -1 if the key does not exist."""
        found = await self.store.get(SETTINGS)
        if found is None:
            return SettingsFact(), -1
        return decode_settings(found.value), found.version

    async def _read(self, name: str) -> tuple[SpaceFact | None, int]:
        found = await self.store.get(_key(name))
        return (None, -1) if found is None else (decode_space(found.value), found.version)


def checked_count(count: int) -> int:
    """Check a number of replicas. Raises `ProgrammingError` if no tablespace can have it."""
    if not 1 <= count <= REPLICAS_MAX:
        raise ProgrammingError(f"a tablespace has 1 to {REPLICAS_MAX} replicas, not {count}")
    return count


def check_name(name: str) -> None:
    """Raise `ProgrammingError` for what cannot be a tablespace's name."""
    if not _NAME.fullmatch(name):
        raise ProgrammingError(
            f"{name!r} cannot be a tablespace's name",
            hint="a letter, then up to 62 letters, digits, _ and -",
        )


def _key(name: str) -> str:
    return f"{SPACES}/{name}"
