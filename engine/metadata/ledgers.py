"""Ledger metadata: the value, its rules, and the one loop that changes it.

Invariants:
- A state moves OPEN -> IN_RECOVERY -> CLOSED or OPEN -> CLOSED, never back.
- A ledger that is restored from a backup moves RESTORING -> CLOSED. Only the restore closes it, and
  only at the end that it had in the backup.
- `last_entry` and `length` are set exactly when CLOSED or RESTORING, and never change afterwards.
- Fragments are ordered by first entry, the first starts at 0, and every ensemble has
  `ensemble_size` different bookies.
- Every write carries a fresh token, so that a writer whose reply was lost recognises its own value.
"""

import contextlib
import enum
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, Literal

import msgspec

from engine.errors import (
    CannotRead,
    KeyExists,
    MetadataUnavailable,
    NoSuchLedger,
    Unavailable,
    VersionConflict,
)
from engine.limits import ENSEMBLE_SIZE_MAX, STRIPE_ENTRIES
from engine.metadata.contract import MetadataStore, pages
from engine.metadata.majors import FIRST_MAJOR, check_major
from engine.metadata.repairs import REPAIRS, RepairItem, RepairQueue
from engine.run import NO_ENTRY

FORMAT_MAJOR: Final = 2
"""The newest format that this program reads. Only the metadata of a RESTORING ledger have it: an
earlier program would mistake such a ledger for an unfinished recovery, and truncate it."""

LEDGERS: Final = "/ledgers"
_ATTEMPTS_MAX: Final = 64


Survives = Literal["bookie", "host", "rack", "zone"]
"""The loss that acknowledged entries survive, no matter how many bookies are lost with it."""


class State(enum.IntEnum):
    """The life of a ledger. Numbers are part of the format."""

    OPEN = 0
    IN_RECOVERY = 1
    CLOSED = 2
    RESTORING = 3


_ORDER: Final = (State.OPEN, State.IN_RECOVERY, State.RESTORING, State.CLOSED)


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """The entries from `first` on, up to the next fragment, are on `ensemble`.

    `domains` are numbers for the failure domains of these bookies, as they were when the bookies
    were chosen (`engine.ledger.quorum`). They are empty if any bookies may acknowledge an entry.
    """

    first: int
    ensemble: tuple[str, ...]
    domains: tuple[int, ...] = ()


class LedgerMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the store knows of one ledger. `msgspec.structs.replace` makes the next value.

    `key_hash` is SHA-256 of the ledger's key, itself a hash of the password (`engine.ledger.keys`).
    `survives` is the loss that acknowledged entries survive, no matter how many bookies are lost
    with it. If it is not `strict` and bookies for that are missing, the next fragments have no
    domains. `released` counts how often a bookie has given back entries that belong to others
    (`engine.repair.surplus`).
    `degraded` says that some replica is known to be missing: the ledger waits in the repair queue.
    `last_entry` and `length` of a RESTORING ledger are the values it will be closed with.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    fragments: tuple[Fragment, ...]
    key_hash: bytes
    created_ms: int
    token: int
    state: State = State.OPEN
    stripe_entries: int = STRIPE_ENTRIES
    last_entry: int | None = None
    length: int | None = None
    degraded: bool = False
    custom: dict[str, bytes] = {}
    survives: Survives = "bookie"
    strict: bool = False
    released: int = 0
    format_major: int = FIRST_MAJOR

    def __post_init__(self) -> None:
        sizes = (self.ensemble_size, self.write_quorum, self.ack_quorum)
        assert ENSEMBLE_SIZE_MAX >= sizes[0] >= sizes[1] >= sizes[2] >= 1, sizes
        ends = self.state in (State.CLOSED, State.RESTORING)
        assert ends == (self.last_entry is not None), self.state
        assert not self.restoring or self.format_major > FIRST_MAJOR, self.format_major
        assert (self.last_entry is None) == (self.length is None)
        assert self.last_entry is None or self.last_entry >= NO_ENTRY
        firsts = [fragment.first for fragment in self.fragments]
        assert firsts[0] == 0 and firsts == sorted(set(firsts)), firsts
        for fragment in self.fragments:
            assert len(set(fragment.ensemble)) == self.ensemble_size, fragment
            assert len(fragment.domains) in (0, self.ensemble_size), fragment

    @property
    def closed(self) -> bool:
        """Whether the ledger's end is fixed."""
        return self.state is State.CLOSED

    @property
    def restoring(self) -> bool:
        """Whether the ledger is being restored from a backup."""
        return self.state is State.RESTORING

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that holds an entry id."""
        for fragment in reversed(self.fragments):
            if fragment.first <= entry_id:
                return fragment
        raise AssertionError(f"no fragment for entry {entry_id}")

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """The ensemble indexes that hold an entry: chosen by stripe, not by entry."""
        start = entry_id // self.stripe_entries
        return tuple((start + i) % self.ensemble_size for i in range(self.write_quorum))

    def bookies(self) -> set[str]:
        """Every bookie that any fragment names."""
        return {bookie for fragment in self.fragments for bookie in fragment.ensemble}

    def with_fragment(
        self, first: int, ensemble: tuple[str, ...], domains: tuple[int, ...] = ()
    ) -> "LedgerMetadata":
        """Add a fragment at `first`, or replace the last one if it starts there."""
        kept = self.fragments
        if kept[-1].first == first:
            kept = kept[:-1]
        assert not kept or kept[-1].first < first, (first, self.fragments)
        fragments = (*kept, Fragment(first, ensemble, domains))
        return msgspec.structs.replace(self, fragments=fragments)


def restoring_at(metadata: LedgerMetadata, last_entry: int, length: int) -> LedgerMetadata:
    """The metadata of a ledger that is being restored from a backup up to this end."""
    return msgspec.structs.replace(
        metadata,
        state=State.RESTORING,
        last_entry=last_entry,
        length=length,
        format_major=FORMAT_MAJOR,
    )


def restored(metadata: LedgerMetadata) -> LedgerMetadata:
    """The metadata of a ledger when everything that the backup has of it has been written."""
    assert metadata.restoring
    return msgspec.structs.replace(metadata, state=State.CLOSED, format_major=FIRST_MAJOR)


def check_not_restoring(metadata: LedgerMetadata) -> None:
    """Raise `Unavailable` for a ledger that is being restored from a backup."""
    if metadata.restoring:
        raise Unavailable(
            f"ledger {metadata.ledger_id} is being restored from a backup: wait until `herdbook "
            "store restore` has finished, or run it again if it was interrupted"
        )


HIDDEN_HASH: Final = bytes(32)
"""Replaces `key_hash` for a client that may only read a ledger."""
encode_metadata = msgspec.msgpack.Encoder().encode
"""The metadata of a ledger, as the metadata store keeps it."""
_decode = msgspec.msgpack.Decoder(LedgerMetadata).decode


def decode_metadata(value: bytes) -> LedgerMetadata:
    """Decode a stored value. Raises `FormatTooNew`, `CannotRead`."""
    try:
        check_major(value, "the metadata of a ledger", FORMAT_MAJOR)
        return _decode(value)
    except (msgspec.MsgspecError, AssertionError, IndexError) as error:
        raise CannotRead(f"the metadata of a ledger are damaged: {error}") from error


class Held(msgspec.Struct, frozen=True):
    """A metadata value with the store's version of it."""

    metadata: LedgerMetadata
    version: int


class Ledgers:
    """The ledgers of a cluster, in its metadata store."""

    def __init__(self, store: MetadataStore, rng: random.Random) -> None:
        self.store = store
        self._rng = rng

    async def new_id(self) -> int:
        """An id that was never used and never will be."""
        return await self.store.next_id("/ids/ledger")

    async def create(self, metadata: LedgerMetadata) -> Held:
        """Store a new ledger. A lost reply is settled by the token. Raises `KeyExists`."""
        metadata = self._tokened(metadata)
        for _ in range(_ATTEMPTS_MAX):
            try:
                value = encode_metadata(metadata)
                version = await self.store.create(_key(metadata.ledger_id), value)
                return Held(metadata, version)
            except (KeyExists, MetadataUnavailable) as error:
                held = await self._read_if_there(metadata.ledger_id)
                if held is not None and held.metadata.token == metadata.token:
                    return held
                if held is not None or isinstance(error, KeyExists):
                    raise KeyExists(f"ledger {metadata.ledger_id} exists") from error
        raise MetadataUnavailable(f"ledger {metadata.ledger_id}: could not be created")

    async def read(self, ledger_id: int) -> Held:
        """Read a ledger's metadata. Raises `NoSuchLedger`, `MetadataUnavailable`."""
        held = await self._read_if_there(ledger_id)
        if held is None:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist")
        return held

    async def update(
        self,
        held: Held,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
    ) -> Held:
        """Change a ledger's metadata by compare-and-set until it holds or is not wanted any more.

        `change(current)` returns the wanted value, or None when `current` is to stay; it may raise
        to give up. It is asked again with the fresh value after each conflict. A value that carries
        this call's token is this call's own, whatever the store answered.
        Raises `NoSuchLedger`, `MetadataUnavailable`.
        """
        token = self._rng.getrandbits(63)
        for _ in range(_ATTEMPTS_MAX):
            wanted = change(held.metadata)
            if wanted is None:
                return held
            wanted = msgspec.structs.replace(wanted, token=token)
            _check_step(held.metadata, wanted)
            try:
                version = await self.store.set(
                    _key(wanted.ledger_id), encode_metadata(wanted), held.version
                )
                return Held(wanted, version)
            except (VersionConflict, MetadataUnavailable):
                held = await self.read(wanted.ledger_id)
                if held.metadata.token == token:
                    return held
        raise MetadataUnavailable(
            f"ledger {held.metadata.ledger_id}: not settled after {_ATTEMPTS_MAX} attempts"
        )

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger's metadata, damaged ones too; bookies collect its bytes later.

        Raises `NoSuchLedger`.
        """
        with contextlib.suppress(CannotRead):
            await self.read(ledger_id)
        await self.store.delete(_key(ledger_id))
        await self.store.delete(f"{REPAIRS}/{ledger_id}")

    async def ids(self) -> list[int]:
        """The ids of all ledgers, ascending. Not a snapshot. Other names are passed over."""
        return [ledger_id async for page in self.pages() for ledger_id in page]

    def pages(self, above: int = -1) -> AsyncIterator[list[int]]:
        """The ids of the ledgers above one, in pages, ascending."""
        return pages(self.store, LEDGERS, above)

    async def request_repair(self, ledger_id: int, reason: str) -> None:
        """Put a ledger in the repair queue, or add the reason if it is there already."""
        await RepairQueue(self.store).request(ledger_id, RepairItem(reasons=(reason,)))

    async def repairs(self) -> list[int]:
        """The ids of the ledgers in the repair queue, ascending."""
        return await RepairQueue(self.store).ids()

    def watch(self, ledger_id: int, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when a ledger's metadata may have changed; returns the way to stop."""
        return self.store.watch(_key(ledger_id), changed)

    async def _read_if_there(self, ledger_id: int) -> Held | None:
        versioned = await self.store.get(_key(ledger_id))
        if versioned is None:
            return None
        return Held(decode_metadata(versioned.value), versioned.version)

    def _tokened(self, metadata: LedgerMetadata) -> LedgerMetadata:
        return msgspec.structs.replace(metadata, token=self._rng.getrandbits(63))


def _key(ledger_id: int) -> str:
    return f"{LEDGERS}/{ledger_id}"


def _check_step(old: LedgerMetadata, new: LedgerMetadata) -> None:
    """Assert that a change keeps what must never change."""
    assert old.ledger_id == new.ledger_id and old.stripe_entries == new.stripe_entries
    assert _ORDER.index(new.state) >= _ORDER.index(old.state), (old.state, new.state)
    if old.last_entry is not None:
        assert (new.last_entry, new.length) == (old.last_entry, old.length)
