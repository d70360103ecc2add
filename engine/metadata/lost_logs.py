"""Logs whose ledgers came back after a loss of metadata, and whose lists did not.

    /lost_logs    MessagePack: name of a log -> how many of its ledgers came back

Invariants:
- A log that stands there is begun by nobody: a new list of that name would have its leader sweep
  away the ledgers that came back.
- A log that has a list never gets there. One that was removed has an empty list with an epoch: what
  comes back of older epochs was to go, and newer epochs were of a log whose list was lost.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from engine.errors import CannotRead, KeyExists, MetadataUnavailable, VersionConflict
from engine.metadata.contract import MetadataStore
from engine.metadata.ledgers import LedgerMetadata

KEY: Final = "/lost_logs"
LISTS: Final = "/logs/{}/list"
OWNER: Final = "owner"
LOG_OWNER: Final = b"log:"
EPOCH: Final = "epoch"
_ATTEMPTS_MAX: Final = 64


class _List(msgspec.Struct):
    """What is looked at of a log's list: `engine.log.log_list.LogList`."""

    epoch: int = 0
    listed: tuple[Any, ...] = ()


_decode_list: Final = msgspec.msgpack.Decoder(_List).decode
_encode: Final = msgspec.msgpack.Encoder().encode
_FORGOTTEN: Final = _encode({"first_ledger": 1})
"""The list of a log that began with some ledger, nobody knows which: all positions are of it."""
_decode: Final = msgspec.msgpack.Decoder(dict[str, int]).decode


async def lost_logs(store: MetadataStore) -> dict[str, int]:
    """Names and how many ledgers each has. Raises `CannotRead`, `MetadataUnavailable`."""
    return (await _read(store))[0]


async def note_lost(store: MetadataStore, restored: Iterable[LedgerMetadata]) -> dict[str, int]:
    """Note the logs of ledgers that came back, unless they have lists; returns them.

    Raises `CannotRead`, `MetadataUnavailable`.
    """
    found: Counter[str] = Counter()
    newest: dict[str, int] = {}
    for metadata in restored:
        owner = metadata.custom.get(OWNER, b"")
        if owner.startswith(LOG_OWNER):
            name = owner.removeprefix(LOG_OWNER).decode(errors="replace")
            epoch = metadata.custom.get(EPOCH, b"")
            found[name] += 1
            newest[name] = max(newest.get(name, 0), int(epoch) if epoch.isdigit() else 0)
    lost = {name: n for name, n in found.items() if not await _has_list(store, name, newest[name])}
    if lost:
        await _change(store, lambda known: {**known, **lost})
    return lost


async def forget_lost(store: MetadataStore, name: str) -> bool:
    """Let a log of this name begin anew; whether it stood there.

    A replica's own state goes on with the new log: that is all there is of the old one. Raises
    `CannotRead`, `MetadataUnavailable`.
    """
    stood = name in await lost_logs(store)
    if stood:
        with suppress(KeyExists):
            await store.create(LISTS.format(name), _FORGOTTEN)
        await _change(store, lambda known: {n: k for n, k in known.items() if n != name})
    return stood


async def _has_list(store: MetadataStore, name: str, epoch: int) -> bool:
    """Whether a log's list tells of its ledgers up to an epoch."""
    found = await store.get(LISTS.format(name))
    if found is None:
        return False
    try:
        current = _decode_list(found.value)
    except msgspec.MsgspecError:
        # Whoever reads it is told.
        return True
    return bool(current.listed) or epoch <= current.epoch


async def _read(store: MetadataStore) -> tuple[dict[str, int], int | None]:
    found = await store.get(KEY)
    if found is None:
        return {}, None
    try:
        return _decode(found.value), found.version
    except msgspec.MsgspecError as error:
        raise CannotRead(f"{KEY} is damaged: {error}") from error


async def _change(store: MetadataStore, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
    for _ in range(_ATTEMPTS_MAX):
        known, version = await _read(store)
        try:
            if version is None:
                await store.create(KEY, _encode(change(known)))
            else:
                await store.set(KEY, _encode(change(known)), version)
            return
        except (KeyExists, VersionConflict):
            # To write the same again does no harm: no token is needed.
            continue
    raise MetadataUnavailable(f"{KEY} could not be changed")
