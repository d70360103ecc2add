"""The queue of ledgers that wait for repair, and whether repair is on, in the metadata store.

Invariants:
- Every request changes the version of its ledger's item, also where the ledger is queued already:
  who removes an item names the version it has read, so no request made meanwhile is lost.
- An item says in words why it is there, and why it could not be repaired the last time.
- A request that rests only on lost bookies can be taken back when they are there again; any other
  reason stays until every replica was looked at.
"""

from typing import Final

import msgspec

from engine.errors import KeyExists, MetadataUnavailable, VersionConflict
from engine.metadata.contract import MetadataStore, pages

REPAIRS: Final = "/repair/ledgers"
DISABLED: Final = "/repair/disabled"
_ATTEMPTS_MAX: Final = 64
_REASONS_MAX: Final = 8


class RepairItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why one ledger waits for repair.

    `lost` and `leaving` are the bookies that are gone, or are to go; `doubtful` those that cannot
    tell what they lack. `reasons` are all others, in words. `blocked` says why the last try did not
    mend it, "" before the first one.
    """

    lost: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    blocked: str = ""

    def merged(self, other: "RepairItem") -> "RepairItem":
        """This item with another's reasons."""
        return RepairItem(
            lost=_joined(self.lost, other.lost),
            leaving=_joined(self.leaving, other.leaving),
            doubtful=_joined(self.doubtful, other.doubtful),
            reasons=_joined(self.reasons, other.reasons)[:_REASONS_MAX],
            blocked=self.blocked,
        )

    def without_lost(self, returned: frozenset[str]) -> "RepairItem | None":
        """This item when bookies have come back; None if nothing is left of it."""
        lost = tuple(name for name in self.lost if name not in returned)
        rest = msgspec.structs.replace(self, lost=lost)
        return rest if lost or self.leaving or self.doubtful or self.reasons else None

    def only(self, reason: str) -> bool:
        """Whether the ledger waits for this and nothing else."""
        others = self.lost or self.leaving or self.doubtful
        return not others and self.reasons == (reason,)

    @property
    def text(self) -> str:
        """All reasons in one line, for people.

        >>> RepairItem(lost=("b1",), reasons=("a replica is missing",)).text
        'bookie b1 is lost; a replica is missing'
        """
        parts = [f"bookie {name} is lost" for name in self.lost]
        parts += [f"bookie {name} is to go" for name in self.leaving]
        parts += [f"bookie {name} cannot tell what it lacks" for name in self.doubtful]
        return "; ".join([*parts, *self.reasons])


class HeldItem(msgspec.Struct, frozen=True):
    """A ledger's item with the store's version of it."""

    ledger_id: int
    item: RepairItem
    version: int


def decode_item(value: bytes) -> RepairItem:
    """Decode a stored item; one that is only text is its own reason.

    One that cannot be read is a reason, too: that the ledger was asked for is sure.

    >>> decode_item(b"a replica is missing").reasons
    ('a replica is missing',)
    """
    if not value.startswith(b"{"):
        return RepairItem(reasons=(value.decode(errors="replace"),))
    try:
        return msgspec.json.decode(value, type=RepairItem)
    except msgspec.MsgspecError:
        return RepairItem(reasons=("its request cannot be read",))


class RepairQueue:
    """The items under `/repair/ledgers` and the switch beside them."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def ids(self) -> list[int]:
        """The ledgers that wait, ascending. Names that are no ledger's id are passed over."""
        return [ledger_id async for page in pages(self.store, REPAIRS) for ledger_id in page]

    async def read(self, ledger_id: int) -> HeldItem | None:
        """A ledger's item, or None. Raises `MetadataUnavailable`."""
        found = await self.store.get(_key(ledger_id))
        if found is None:
            return None
        return HeldItem(ledger_id, decode_item(found.value), found.version)

    async def request(self, ledger_id: int, wanted: RepairItem) -> None:
        """Queue a ledger, or add to what it is queued for. Raises `MetadataUnavailable`."""
        for _ in range(_ATTEMPTS_MAX):
            held = await self.read(ledger_id)
            try:
                if held is None:
                    await self.store.create(_key(ledger_id), msgspec.json.encode(wanted))
                else:
                    await self.write(held, held.item.merged(wanted))
                return
            except (KeyExists, VersionConflict):
                continue
        raise MetadataUnavailable(f"the repair of ledger {ledger_id} could not be asked for")

    async def write(self, held: HeldItem, item: RepairItem) -> HeldItem:
        """Replace an item that is still as it was read. Raises `VersionConflict`."""
        key, value = _key(held.ledger_id), msgspec.json.encode(item)
        return HeldItem(held.ledger_id, item, await self.store.set(key, value, held.version))

    async def remove(self, held: HeldItem) -> bool:
        """Remove an item; False if something was asked for since it was read."""
        try:
            await self.store.delete(_key(held.ledger_id), held.version)
        except VersionConflict:
            return False
        return True

    async def disable(self, reason: str) -> None:
        """Let nothing be repaired until `enable`; what waits goes on waiting."""
        try:
            await self.store.create(DISABLED, reason.encode())
        except KeyExists:
            return

    async def enable(self) -> None:
        """Let repair go on."""
        await self.store.delete(DISABLED)

    async def disabled(self) -> str | None:
        """Why repair is switched off, or None while it is on."""
        found = await self.store.get(DISABLED)
        return None if found is None else found.value.decode(errors="replace")


def _key(ledger_id: int) -> str:
    return f"{REPAIRS}/{ledger_id}"


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
