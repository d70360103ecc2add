"""Which bookies there are: registrations, boot counts, the cluster's id.

Invariants:
- A bookie's id never changes; its address stands only in its registration.
- A registration is ephemeral: it goes with the bookie's session.
- `/boots/<id>` counts the starts of a bookie and never goes back.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import FolderRolledBack, KeyExists, VersionConflict
from engine.metadata.contract import MetadataStore

AVAILABLE: Final = "/bookies"
BOOTS: Final = "/boots"
DECOMMISSIONS: Final = "/repair/decommission"


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a running bookie publishes of itself.

    `address` is the framed wire's ("unix:/path" or "tcp:host:port"), `grpc` the gRPC wire's
    ("host:port"); each is empty if it is not served. `host` names the machine and `rack` the rack:
    bookies of one host, and of one rack, may fail together. Empty means not known.
    """

    bookie_id: str
    boot: int
    address: str = ""
    writable: bool = True
    rack: str = ""
    grpc: str = ""
    host: str = ""


class Bookies:
    """The registered bookies of a cluster, in its metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def register(self, registration: Registration) -> None:
        """Publish a bookie, in place of what an earlier session of it left."""
        key = f"{AVAILABLE}/{registration.bookie_id}"
        value = msgspec.msgpack.encode(registration)
        await self.store.delete(key)
        await self.store.create(key, value, ephemeral=True)

    async def unregister(self, bookie_id: str) -> None:
        """Take a bookie's registration away."""
        await self.store.delete(f"{AVAILABLE}/{bookie_id}")

    async def available(self) -> dict[str, Registration]:
        """The registered bookies by id, in the ids' order."""
        names = await self.store.children(AVAILABLE)
        # Together: one after the other they would cost a round trip each.
        values = await asyncio.gather(*(self.store.get(f"{AVAILABLE}/{name}") for name in names))
        return {
            name: msgspec.msgpack.decode(versioned.value, type=Registration)
            for name, versioned in zip(names, values, strict=True)
            if versioned is not None
        }

    async def known(self) -> list[str]:
        """The ids of all bookies that ever started, running or not, in order."""
        return await self.store.children(BOOTS)

    async def decommissioning(self) -> list[str]:
        """The ids of the bookies that are to go, in order: no new ledger is placed on them."""
        return await self.store.children(DECOMMISSIONS)

    async def staying(self) -> dict[str, Registration]:
        """The registered bookies that are not to go, by id, in the ids' order."""
        leaving = frozenset(await self.decommissioning())
        available = await self.available()
        return {name: found for name, found in available.items() if name not in leaving}

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when bookies may have come or gone, or are to; returns the way to stop."""
        ends = [self.store.watch(key, changed) for key in (AVAILABLE, DECOMMISSIONS)]

        def end() -> None:
            for each in ends:
                each()

        return end

    async def raise_boot(self, bookie_id: str, folder_boot: int) -> int:
        """Count one more start of a bookie whose folder remembers `folder_boot` of them.

        Returns the new count. The caller writes it to the folder before it serves, so the store
        is at most one ahead: a start that ended between the two writes, and never served.
        Raises `FolderRolledBack` when the store remembers more than that.
        """
        key = f"{BOOTS}/{bookie_id}"
        while True:
            versioned = await self.store.get(key)
            stored = int(versioned.value) if versioned is not None else 0
            if stored > folder_boot + 1:
                raise FolderRolledBack(
                    f"bookie {bookie_id}: its folder counts {folder_boot} starts, the metadata "
                    f"store {stored}: an old copy of the folder was put back"
                )
            boot = folder_boot + 1
            try:
                if stored == boot:
                    return boot
                if versioned is None:
                    await self.store.create(key, str(boot).encode())
                else:
                    await self.store.set(key, str(boot).encode(), versioned.version)
                return boot
            except (KeyExists, VersionConflict):
                continue
