"""The replicas of a log that run at the moment, and which commands each of them knows.

The key `/logs/NAME/replicas/ID` is ephemeral and holds a `Member`.

Invariants:
- A new level of commands is allowed only when every replica that runs knows it. One that is away
  and comes back older stops by itself (`LevelTooNew`) before it applies what it does not know.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from engine.errors import KeyExists, MetadataConflict, MetadataUnavailable
from engine.log.log_list import LOGS
from engine.metadata.contract import MetadataStore


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A replica that runs."""

    replica: str
    address: str
    level: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Member).decode


class Members:
    """One replica's registration, and its view of the others'."""

    def __init__(
        self, store: MetadataStore, log_name: str, replica: str, address: str, level: int
    ) -> None:
        self._store = store
        self._folder = f"{LOGS}/{log_name}/replicas"
        self._own = f"{self._folder}/{replica}"
        self._member = Member(replica, address, level)
        self._registered = False
        self._lost = asyncio.Event()
        self._unwatch = store.watch_session(self._forget)

    async def keep(self, pause_s: float) -> None:
        """Be listed, and again after each session that was lost, for ever."""
        while True:
            self._lost.clear()
            try:
                await self.register()
            except MetadataUnavailable:
                await asyncio.sleep(pause_s)
            else:
                await self._lost.wait()

    async def register(self) -> None:
        """Be listed, if this replica is not. Raises `MetadataUnavailable`."""
        if self._registered:
            return
        try:
            await self._store.create(self._own, _encode(self._member), ephemeral=True)
        except KeyExists:
            # Of an earlier session, which may end at any time and take the key along.
            try:
                await self._store.delete(self._own)
                await self._store.create(self._own, _encode(self._member), ephemeral=True)
            except MetadataConflict as error:
                raise MetadataUnavailable(f"{self._own} is somebody else's: {error}") from error
        self._registered = True

    async def all(self) -> list[Member]:
        """Every replica that is listed; what is not readable counts as knowing level 1 alone.

        Raises `MetadataUnavailable`.
        """
        found = []
        for name in await self._store.children(self._folder):
            versioned = await self._store.get(f"{self._folder}/{name}")
            if versioned is not None:
                try:
                    found.append(_decode(versioned.value))
                except msgspec.MsgspecError:
                    found.append(Member(name, "", 1))
        return found

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when a replica may have come or gone; returns the way to stop."""
        return self._store.watch(self._folder, changed)

    def unwatch(self) -> None:
        """Hear nothing of the session any more. May be called twice."""
        self._unwatch()

    async def close(self) -> None:
        """Be listed no more."""
        with contextlib.suppress(MetadataUnavailable):
            await self._store.delete(self._own)

    def _forget(self) -> None:
        self._registered = False
        self._lost.set()
