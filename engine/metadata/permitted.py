"""A metadata store as one caller sees it: what a user may read, and the little a user may change.

A rule says what a user sees of the value of a key. `LEDGER_RULES` are the rules of the ledger
layer. The layers above have rules for their own keys.

    key             who may read it
    /bookies/ID     everybody
    /ledgers/ID     whoever may read its tablespace or bucket, without the hash of its password

Invariants:
- A key without a rule is for administrators only, and so is a method that changes something, except
  for `changes`.
- Rights are checked anew for each call, so a revoked grant no longer counts. A user who becomes an
  administrator gets the new rights in the next session: this session has returned values with
  parts left out.
- A watch says only that something may have changed. The right to it is checked when it begins. It
  is kept only if the key exists, because a store keeps something for each key that was ever
  watched. If the key does not exist, the watch fires once, so that a waiting client looks again.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from engine.access.door import Caller
from engine.access.owners import may_read
from engine.access.principal import Principal
from engine.errors import AccessRefused, EngineError, VersionConflict
from engine.metadata.bookies import AVAILABLE
from engine.metadata.contract import MetadataStore, Page, ServerClock, Versioned
from engine.metadata.ledgers import HIDDEN_HASH, LEDGERS, decode_metadata, encode_metadata
from engine.metadata.passed_on import PassedOn

Shown = Callable[[Principal, bytes], bytes | None]
"""What a user sees of a value; None: the user may not read it."""
Rule = Callable[[Principal, str], Shown | None]
"""How to show the value of a key; None: the rule does not let the user read this key."""
Names = Callable[[Principal, list[str]], list[str]]
"""Which of the names under a key a user may know."""
Change = Callable[[Principal, str, bytes, bytes], bytes | None]
"""What is written if a user changes a key from one value to another; None: it is not allowed."""


class PermittedStore:
    """The session of one caller. A `MetadataStore` that also raises `AccessRefused`.

    `lists` has the keys under which names may be listed, `changes` the writes that users may make.
    """

    def __init__(
        self,
        store: MetadataStore,
        caller: Caller,
        rules: Sequence[Rule],
        lists: dict[str, Names],
        changes: Sequence[Change] = (),
    ) -> None:
        self._store = store
        self._caller = caller
        self._rules = rules
        self._lists = lists
        self._changes = changes
        self._is_admin = caller.principal.admin
        self._beginning: set[asyncio.Task[Callable[[], None] | None]] = set()

    @property
    def cluster_id(self) -> str:
        """See `MetadataStore`."""
        return self._store.cluster_id

    async def get(self, key: str) -> Versioned | None:
        """See `MetadataStore.get`."""
        principal = await self._principal()
        if principal.admin:
            return await self._store.get(key)
        shown = self._shown(principal, key)
        found = await self._store.get(key)
        if found is None:
            return None
        value = shown(principal, found.value)
        if value is None:
            raise _refusal(principal, key)
        return Versioned(value, found.version)

    async def create(self, key: str, value: bytes, *, ephemeral: bool = False) -> int:
        """See `MetadataStore.create`."""
        await self._check_admin()
        return await self._store.create(key, value, ephemeral=ephemeral)

    async def set(self, key: str, value: bytes, version: int) -> int:
        """See `MetadataStore.set`."""
        principal = await self._principal()
        if not principal.admin:
            self._shown(principal, key)
            found = await self._store.get(key)
            value = self._changed(principal, key, b"" if found is None else found.value, value)
            if found is None or found.version != version:
                raise VersionConflict(f"{key} has changed")
        return await self._store.set(key, value, version)

    async def delete(self, key: str, version: int | None = None) -> None:
        """See `MetadataStore.delete`."""
        await self._check_admin()
        await self._store.delete(key, version)

    async def children(self, prefix: str) -> list[str]:
        """See `MetadataStore.children`: the names that the caller may know."""
        principal = await self._principal()
        names = self._lists.get(prefix)
        if principal.admin:
            return await self._store.children(prefix)
        if names is None:
            raise _refusal(principal, prefix)
        return names(principal, await self._store.children(prefix))

    async def page(self, prefix: str, above: int = -1) -> Page:
        """See `MetadataStore.page`."""
        await self._check_admin()
        return await self._store.page(prefix, above)

    async def next_id(self, counter: str) -> int:
        """See `MetadataStore.next_id`."""
        await self._check_admin()
        return await self._store.next_id(counter)

    async def sync(self) -> None:
        """See `MetadataStore.sync`."""
        await self._caller.now()
        await self._store.sync()

    async def server_ms(self) -> int | None:
        """See `ServerClock.server_ms`."""
        await self._caller.now()
        return await self._store.server_ms() if isinstance(self._store, ServerClock) else None

    def watch(self, key: str, changed: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`. A watch on a key that the caller may not read never fires."""
        if self._is_admin and self._caller.principal.admin:
            return self._store.watch(key, changed)
        begun = asyncio.get_running_loop().create_task(self._begin_watch(key, changed))
        self._beginning.add(begun)
        begun.add_done_callback(self._beginning.discard)

        def end() -> None:
            if not begun.done():
                begun.cancel()
            elif not begun.cancelled() and (stop := begun.result()) is not None:
                stop()

        return end

    def watch_session(self, lost: Callable[[], None]) -> Callable[[], None]:
        """See `MetadataStore.watch_session`."""
        return self._store.watch_session(lost)

    async def close(self) -> None:
        """See `MetadataStore.close`."""
        for begun in self._beginning:
            begun.cancel()
        await self._store.close()

    async def _begin_watch(
        self, key: str, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        """Watch a key that may be read. Returns a function that ends the watch, if one began."""
        with contextlib.suppress(EngineError):
            if key in self._lists or await self.get(key) is not None:
                stop = self._store.watch(key, changed)
            else:
                stop = None
            # It may have changed before the watch began.
            changed()
            return stop
        return None

    async def _principal(self) -> Principal:
        principal = await self._caller.now()
        if principal.admin and not self._is_admin:
            return dataclasses.replace(principal, admin=False)
        return principal

    async def _check_admin(self) -> None:
        (await self._principal()).check_admin()

    def _shown(self, principal: Principal, key: str) -> Shown:
        for rule in self._rules:
            shown = rule(principal, key)
            if shown is not None:
                return shown
        raise _refusal(principal, key)

    def _changed(self, principal: Principal, key: str, before: bytes, after: bytes) -> bytes:
        for change in self._changes:
            value = change(principal, key, before, after)
            if value is not None:
                return value
        raise AccessRefused(f"{principal.name} may not change {key} in the cluster's metadata")


def whole(_principal: Principal, value: bytes) -> bytes | None:
    """A value that may be seen as it is."""
    return value


def every_name(_principal: Principal, names: list[str]) -> list[str]:
    """Names that everybody may know."""
    return names


def _bookies(_principal: Principal, key: str) -> Shown | None:
    return whole if key.rpartition("/")[0] == AVAILABLE else None


def _ledgers(_principal: Principal, key: str) -> Shown | None:
    return _ledger if key.rpartition("/")[0] == LEDGERS else None


def _ledger(principal: Principal, value: bytes) -> bytes | None:
    metadata = decode_metadata(value)
    if not may_read(principal, metadata.custom):
        return None
    # Passwords could be guessed from their hashes, and a reader does not need the hash.
    return encode_metadata(msgspec.structs.replace(metadata, key_hash=HIDDEN_HASH))


def _refusal(principal: Principal, key: str) -> AccessRefused:
    return AccessRefused(f"{principal.name} may not read {key} in the cluster's metadata")


LEDGER_RULES: Final[tuple[Rule, ...]] = (_bookies, _ledgers)
LEDGER_LISTS: Final[dict[str, Names]] = {AVAILABLE: every_name}


def reader_session(
    store: MetadataStore, caller: Caller, *, time: ServerClock | None = None
) -> MetadataStore:
    """A session at a bookie. Parts of the cluster see everything, a reader what it may read."""
    session = PassedOn(store, time)
    if not caller.passing:
        return session
    return PermittedStore(session, caller, LEDGER_RULES, LEDGER_LISTS)
