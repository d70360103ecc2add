"""Objects made of the parts of others: append and concat.

The bytes of the new parts are stored first, then the list of all parts, then one row names it.

Invariants:
- The list that gets the name is made of the very version that is replaced; if another one has come
  in between, it is made again. No append is lost, none counts twice.
- No byte that is there already is copied, but for many small parts, which are written together.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import takewhile
from typing import Final

from blobit.bucket_core import Asked, BucketCore, Known, data_parts, owner_of
from blobit.committing import Change, Effect, Found, LedgerGone
from blobit.errors import BlobError, BlobNotStored
from blobit.object_id import ObjectId
from blobit.sources import Source
from blobit.tables import ObjectInfo, Row, RowKey
from blobit.writers import LedgerPool
from engine.limits import MIB

_SMALL_PARTS_MAX: Final = 64
_SMALL_BYTES: Final = 4 * MIB


class _Overtaken(BlobError):
    """Another version has come: the list is made again."""


class Parts:
    """Append and concat of one bucket."""

    def __init__(self, core: BucketCore) -> None:
        self._core = core
        self._turns: dict[str, _Turn] = {}

    async def append(self, name: str, source: Source, if_match: str | None) -> ObjectInfo:
        """Add bytes to the end of an object. Raises as `AsyncBucket.append`."""
        core = self._core
        core.check()
        before = await core.find(name)
        if if_match is not None:
            core.check_match(name, before, if_match)
        expires_ms = core.expiry(core.now_ms, None) if before is None else before.expires_ms
        pool, known = core.pool_for(expires_ms), Known()

        async def commit(added: ObjectId) -> ObjectInfo:
            async with self._turn(name):
                try:
                    return await self._append(name, added, if_match, known)
                except LedgerGone:
                    # Whichever of them is gone, nothing more is to come to any.
                    for held in known.held.values():
                        for _, part in held:
                            pool.forget(part.ledger_id)
                    raise

        return await core.stored(core.storing(pool, source), pool, known, commit)

    async def _append(
        self, name: str, added: ObjectId, if_match: str | None, known: Known
    ) -> ObjectInfo:
        core = self._core
        new_parts = data_parts(await core.listed(added), added)
        while True:
            before = await core.find(name)
            if if_match is not None:
                core.check_match(name, before, if_match)
            old_parts = [] if before is None else await self._parts_of(before, known)
            expires_ms = core.expiry(core.now_ms, None) if before is None else before.expires_ms
            pool = core.pool_for(expires_ms)
            parts = await self._gathered([*old_parts, *new_parts], pool)
            whole = await core.list_of(parts, pool, known)
            asked = Asked(name, expires_ms=expires_ms)
            if before is not None:
                asked = Asked(name, before.content_type, before.packed_metadata, expires_ms)
            info = core.version(asked, whole, core.now_ms)
            try:
                change = self._change(info, {name: before}, frozenset(), known)
                return await core.commit(change, known)
            except _Overtaken:
                continue

    async def _gathered(self, parts: list[ObjectId], pool: LedgerPool) -> list[ObjectId]:
        """The parts, the last ones written together if they are many and small.

        So an object that grows for ever in small steps has a short list, and each of its bytes is
        written a few times at most.
        """
        tail = list(takewhile(lambda part: part.length < _SMALL_BYTES, reversed(parts)))[::-1]
        if len(tail) < _SMALL_PARTS_MAX:
            return parts
        blobs = self._core.blobs

        async def bytes_of_tail() -> AsyncGenerator[bytes, None]:
            for part in tail:
                own = self._core.bucket_id
                async with aclosing(blobs.stream(part, bucket_id=own)) as pieces:
                    async for piece in pieces:
                        yield piece

        whole = await blobs.store(pool, bytes_of_tail())
        return [*parts[: -len(tail)], *await blobs.parts_of(whole)]

    async def concat(self, target: str, sources: Sequence[str], *, keep: bool) -> ObjectInfo:
        """Make an object of others. Raises as `AsyncBucket.concat`."""
        core, known = self._core, Known()
        core.check()
        names = list(dict.fromkeys([target, *sources]))
        gone = frozenset(names) if not keep else frozenset()
        async with self._turn(target):
            refused = 0
            while True:
                before = {name: await core.find(name) for name in names}
                info = await self._whole(target, sources, before, known)
                try:
                    return await core.commit(self._change(info, before, gone, known), known)
                except _Overtaken:
                    # Whoever came first has got on; so it ends.
                    continue
                except LedgerGone as error:
                    refused += 1
                    core.pool_for(info.expires_ms).forget(info.object_id.ledger_id)
                    if refused >= core.blobs.settings.attempts_max:
                        raise BlobNotStored("its ledgers are collected at once: retry") from error

    def _change(
        self,
        info: ObjectInfo,
        before: dict[str, ObjectInfo | None],
        gone: frozenset[str],
        known: Known,
    ) -> Change[ObjectInfo]:
        """Put a version in its place, if all is as it was `before`, and remove what is `gone`."""
        core = self._core
        keys = {name: core.object_key(name) for name in before}

        def decide(found: Found) -> Effect[ObjectInfo]:
            for name, was in before.items():
                _check_same(was, core.alive(found[keys[name]]))
            writes: dict[RowKey, Row | None] = {}
            for name in gone - {info.name}:
                writes.update(core.freed(found[keys[name]], known))
            return Effect(writes | core.replaced(found[keys[info.name]], info, known), info)

        return Change(tuple(keys.values()), decide, core.confirming(info))

    async def _whole(
        self,
        target: str,
        sources: Sequence[str],
        before: dict[str, ObjectInfo | None],
        known: Known,
    ) -> ObjectInfo:
        """The object that sources make together, of the versions that they are now."""
        core, parts = self._core, list[ObjectId]()
        for name in sources:
            info = before[name]
            if info is None:
                raise core.missing(name)
            parts += await self._parts_of(info, known)
        replaced = before[target]
        # No byte ends before its time: the last of them says when all do, if ever.
        ends = [info.expires_ms for name in sources if (info := before[name]) is not None]
        known_ends = [end for end in ends if end is not None]
        expires_ms = core.expiry(core.now_ms, None) if not ends else None
        if ends and len(known_ends) == len(ends):
            expires_ms = max(known_ends)
        whole = await core.list_of(parts, core.pool_for(expires_ms), known)
        model = replaced or next((before[name] for name in sources), None)
        asked = Asked(target, expires_ms=expires_ms)
        if model is not None:
            asked = Asked(target, model.content_type, model.packed_metadata, expires_ms)
        return core.version(asked, whole, core.now_ms)

    async def _parts_of(self, info: ObjectInfo, known: Known) -> list[ObjectId]:
        held = known.held.get(info.packed_id)
        if held is None:
            held = await self._core.held(owner_of(info.name), info.packed_id)
            known.held[info.packed_id] = held
        return data_parts(held, info.object_id)

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """One after the other in this process: two that meet would only make lists in vain."""
        turn = self._turns.setdefault(name, _Turn())
        turn.wanted += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[name]


class _Turn:
    """Who changes the parts of an object now, and how many want to."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.wanted = 0


def _check_same(before: ObjectInfo | None, now: ObjectInfo | None) -> None:
    """Raise `_Overtaken` unless both are one version, or nothing."""
    if (before is None) is not (now is None):
        raise _Overtaken("another version has come")
    if before is not None and now is not None:
        # Compaction moves an object and leaves its etag.
        if (before.etag, before.packed_id) != (now.etag, now.packed_id):
            raise _Overtaken("another version has come")
