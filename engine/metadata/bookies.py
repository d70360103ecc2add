"""Which bookies there are: registrations, the ages of their folders, the cluster's id.

Invariants:
- A bookie's id never changes; its address stands only in its registration.
- A registration is ephemeral: it goes with the bookie's session.
- An older start that finds the registration of a newer one leaves it alone and must stop: it runs
  on a copy of the folder, or is the folder's previous process. If the newer one registers between
  the older one's check and its write, it registers again, and the older start finds that.
- `/boots/<id>` holds the age of a bookie's folder and never goes back. The folder knew each age
  before the store did, so a folder that is younger than the store says is an old copy.
- `/folders/<id>` is the location of a bookie's folder. It is written before the bookie serves, and
  removed when the bookie is forgotten. So an empty folder at the location of a bookie's data is
  noticed.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from engine.errors import (
    CannotRead,
    FolderDamaged,
    FolderRolledBack,
    KeyExists,
    VersionConflict,
)
from engine.metadata.contract import MetadataStore, Versioned
from engine.metadata.majors import FIRST_MAJOR

AVAILABLE: Final = "/bookies"
BOOTS: Final = "/boots"
FOLDERS: Final = "/folders"
DECOMMISSIONS: Final = "/repair/decommission"
LOST: Final = "/repair/lost"


class FolderAge(NamedTuple):
    """How often a folder was started, and how many marks were set since its last start.

    Ages are ordered: a start is older than all marks of the one before.
    """

    boot: int
    mark: int = 0

    def pack(self) -> bytes:
        """The age as the store holds it."""
        return (f"{self.boot}.{self.mark}" if self.mark else f"{self.boot}").encode()

    @classmethod
    def unpack(cls, value: bytes) -> "FolderAge":
        """The age that `pack` packed. Raises `CannotRead`."""
        try:
            boot, _, mark = value.decode("ascii").partition(".")
            return cls(int(boot), int(mark or 0))
        except ValueError as error:
            raise CannotRead(f"{value[:40]!r} is no age of a bookie's folder") from error


class FolderPlace(msgspec.Struct, frozen=True):
    """The location of a bookie's folder: the machine and the path there.

    In a whole store's folder, `host` is empty and the path is relative to the store's folder.
    """

    host: str
    folder: str


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a running bookie publishes about itself.

    `address` is the framed wire's ("unix:/path" or "tcp:host:port"), `grpc` the gRPC wire's
    ("host:port"); each is empty if it is not served. `host` names the machine, `rack` the rack
    and `zone` the zone: bookies that share one of these may fail together. `disk` names the file
    system: bookies on the same file system share its free space. Empty means not known. If a bookie
    is not `writable`, only the reserve of its disk is left; if it is `exhausted`, not even that.
    `layout` is the newest layout of keys that its program can read (`engine.metadata.majors`).
    """

    bookie_id: str
    boot: int
    address: str = ""
    writable: bool = True
    rack: str = ""
    grpc: str = ""
    host: str = ""
    disk: str = ""
    exhausted: bool = False
    zone: str = ""
    layout: int = FIRST_MAJOR


class Bookies:
    """The registered bookies of a cluster, in its metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store

    async def register(self, registration: Registration) -> None:
        """Publish a bookie, replacing what an earlier session of it left.

        Three steps: look for a newer start, delete the old key, create the new one. They are
        repeated if the key is there again. If the caller is interrupted between the last two, the
        bookie is not registered, as if it were stopped: its ledgers stay, and it takes part again
        after another call.

        Raises `FolderRolledBack` if a newer start of its folder is registered, and
        `MetadataUnavailable`.
        """
        key = f"{AVAILABLE}/{registration.bookie_id}"
        value = msgspec.msgpack.encode(registration)
        while True:
            await self.check_newest(registration.bookie_id, registration.boot)
            await self.store.delete(key)
            try:
                await self.store.create(key, value, ephemeral=True)
                return
            except KeyExists:
                # An earlier process had sent its own registration before it was killed, and the
                # request arrived only now.
                continue

    async def unregister(self, bookie_id: str, boot: int | None = None) -> None:
        """Remove a bookie's registration; with `boot`, only one by this start or an older one."""
        if boot is not None:
            found = await self.registration(bookie_id)
            if found is not None and found.boot > boot:
                return
        await self.store.delete(f"{AVAILABLE}/{bookie_id}")

    async def registration(self, bookie_id: str) -> Registration | None:
        """What a bookie has published; None while it is not registered."""
        found = await self.store.get(f"{AVAILABLE}/{bookie_id}")
        return None if found is None else _decode_registration(bookie_id, found.value)

    async def check_newest(self, bookie_id: str, boot: int) -> Registration | None:
        """A bookie's registration by this start or an older one; None if there is none.

        Raises `FolderRolledBack` for a registration by a newer start.
        """
        found = await self.registration(bookie_id)
        if found is not None and found.boot > boot:
            raise FolderRolledBack(
                f"bookie {bookie_id}: start {found.boot} of its folder is registered, but this is "
                f"start {boot}: a copy of the folder was started, or the folder was started "
                "elsewhere; this process stops"
            )
        return found

    async def available(self) -> dict[str, Registration]:
        """The registered bookies by id, in the ids' order.

        One whose registration cannot be read is there, but takes no writes and has no address.
        """
        names = await self.store.children(AVAILABLE)
        # Together: one after the other they would cost a round trip each.
        values = await asyncio.gather(*(self.store.get(f"{AVAILABLE}/{name}") for name in names))
        return {
            name: _decode_registration(name, versioned.value)
            for name, versioned in zip(names, values, strict=True)
            if versioned is not None
        }

    async def known(self) -> list[str]:
        """The ids of all bookies that ever started, running or not, in order."""
        return await self.store.children(BOOTS)

    async def keep_place(self, bookie_id: str, place: FolderPlace) -> None:
        """Store the location of a bookie's folder. Raises `MetadataUnavailable`."""
        key, value = f"{FOLDERS}/{bookie_id}", msgspec.json.encode(place)
        while True:
            found = await self.store.get(key)
            try:
                if found is None:
                    await self.store.create(key, value)
                elif found.value != value:
                    await self.store.set(key, value, found.version)
                return
            except (KeyExists, VersionConflict):
                continue

    async def places(self) -> dict[str, FolderPlace]:
        """The known locations of bookies' folders, in the order of the bookies' ids."""
        names = await self.store.children(FOLDERS)
        values = await asyncio.gather(*(self.store.get(f"{FOLDERS}/{name}") for name in names))
        found = zip(names, (_decode_place(each) for each in values), strict=True)
        return {name: place for name, place in found if place is not None}

    async def refuse_empty(self, place: FolderPlace) -> None:
        """Refuse an empty folder at the location of a bookie's data.

        Bookies that are being decommissioned, or that run on another machine, are not expected.
        Raises `FolderDamaged`, `MetadataUnavailable`.
        """
        expected = [name for name, at in (await self.places()).items() if at == place]
        if not expected:
            return
        leaving = frozenset(await self.decommissioning())
        for name in expected:
            found = await self.registration(name)
            if name in leaving or (found is not None and found.host != place.host):
                continue
            raise FolderDamaged(
                f"{place.folder} is empty, but bookie {name} has its data there: mount the disk "
                f"and start again; if the data is lost, run `herdbook bookie decommission {name} "
                "--no-wait`, then a new bookie starts in the folder"
            )

    async def given_up(self) -> list[str]:
        """The ids of the bookies that were away for too long, in order."""
        return await self.store.children(LOST)

    async def decommissioning(self) -> list[str]:
        """The ids of the bookies that are to go, in order: no new ledger is placed on them."""
        return await self.store.children(DECOMMISSIONS)

    async def staying(self) -> dict[str, Registration]:
        """The registered bookies that are not to go, by id, in the ids' order."""
        leaving = frozenset(await self.decommissioning())
        available = await self.available()
        return {name: found for name, found in available.items() if name not in leaving}

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when bookies may have come or gone; returns a function that stops this.

        It is also called when a bookie is to be decommissioned, or no longer.
        """
        ends = [self.store.watch(key, changed) for key in (AVAILABLE, DECOMMISSIONS)]

        def end() -> None:
            for each in ends:
                each()

        return end

    async def check_age(self, bookie_id: str, age: FolderAge) -> None:
        """Refuse a folder that is younger than the store remembers.

        Raises `FolderRolledBack`, `CannotRead`, `MetadataUnavailable`.
        """
        # A store that lags behind may not know of the newest start yet.
        await self.store.sync()
        versioned = await self.store.get(f"{BOOTS}/{bookie_id}")
        if versioned is not None and FolderAge.unpack(versioned.value) > age:
            raise _rolled_back(bookie_id, age, FolderAge.unpack(versioned.value))

    async def raise_age(self, bookie_id: str, age: FolderAge) -> None:
        """Let the store remember an age that the folder has reached, and holds durably.

        What an earlier write that was called lost does later is below `age`: each try has an age
        of its own. So an equal one is another's, who runs on a copy of the folder. Raises
        `FolderRolledBack`, `CannotRead`, `MetadataUnavailable` (it may be remembered or not).
        """
        key = f"{BOOTS}/{bookie_id}"
        while True:
            versioned = await self.store.get(key)
            try:
                if versioned is None:
                    await self.store.create(key, age.pack())
                    return
                stored = FolderAge.unpack(versioned.value)
                if stored >= age:
                    raise _rolled_back(bookie_id, age, stored)
                await self.store.set(key, age.pack(), versioned.version)
                return
            except (KeyExists, VersionConflict):
                continue


def _decode_registration(bookie_id: str, value: bytes) -> Registration:
    try:
        return msgspec.msgpack.decode(value, type=Registration)
    except msgspec.MsgspecError:
        return Registration(bookie_id, 0, writable=False)


def _decode_place(found: Versioned | None) -> FolderPlace | None:
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.value, type=FolderPlace)
    except msgspec.MsgspecError:
        return None


def _rolled_back(bookie_id: str, age: FolderAge, stored: FolderAge) -> FolderRolledBack:
    return FolderRolledBack(
        f"bookie {bookie_id}: its folder counts {age.boot} starts and {age.mark} marks, the "
        f"metadata store {stored.boot} and {stored.mark}: an old copy of the folder was put back, "
        "or another copy of it runs"
    )
