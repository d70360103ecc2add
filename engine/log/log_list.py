"""The list of a log's ledgers: its value, its rules, and the one loop that changes it.

Invariants:
- The epoch never goes back. It is raised by one, by compare-and-set, from the epoch that was read:
  if it has changed since, somebody else leads, and this caller does not raise it again.
- Ledgers are listed in ascending order, each once, at the end; they leave from the front.
- Every ledger but the last is closed, and its end stands beside it.
- `dropped_through` is the last entry that was dropped; it never goes back.
- A log that is removed leaves its list, empty, with the epoch of the removal: the next log of this
  name goes on from there, so epochs tell its ledgers and writers from those of all before it.
- The leader of an epoch is named in the write that raises it. An epoch that is raised without an
  election, by a removal for example, leaves the name: the next leader still waits for that lease.
- A position before the first ledger, but for START, is one of a log that was removed.
- Every write carries a fresh token, so that a writer whose reply was lost recognises its own value.
"""

import random
import re
from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import (
    CannotRead,
    Deposed,
    InvalidRequest,
    KeyExists,
    MetadataUnavailable,
    VersionConflict,
)
from engine.log.position import START, Position
from engine.metadata.contract import MetadataStore
from engine.metadata.lost_logs import lost_logs
from engine.metadata.majors import FIRST_MAJOR, check_major, encode_major
from engine.run import NO_ENTRY

FORMAT_MAJOR: Final = 2
"""1: leaders were elected by a key beside the list, which no leader is named in."""
LOGS: Final = "/logs"
NAME_BYTES_MAX: Final = 200
_PART: Final = re.compile(r"[A-Za-z0-9._-]+")
_KEYS_OF_A_LOG: Final = ("list", "leader", "snapshot", "replicas")
_ATTEMPTS_MAX: Final = 64


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A ledger of the log. `listed_ms` is the wall clock of who listed it, for retention only."""

    ledger: int
    listed_ms: int
    last_entry: int | None = None


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """Entries after `position` are kept until the wall clock says `expires_ms`."""

    name: str
    position: Position
    expires_ms: int


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """Who was elected last, and leads if the epoch is still its own and it has not resigned."""

    process: str
    """The incarnation of its process: see `engine.metadata.liveness`."""
    replica: str
    address: str
    lease_ms: int
    epoch: int = 0
    resigned: bool = False
    attempt: int = 0
    """A random number: a replica may try to be elected several times from one epoch."""


class LogList(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the metadata store knows of a log. `msgspec.structs.replace` makes the next value.

    `first_ledger` is the very first ledger that was ever listed, 0 before that and after a removal.
    """

    epoch: int = 0
    listed: tuple[Listed, ...] = ()
    first_ledger: int = 0
    dropped_through: Position = START
    pins: tuple[Pin, ...] = ()
    token: int = 0
    leader: Leader | None = None
    format_major: int = FIRST_MAJOR

    def __post_init__(self) -> None:
        ids = [listed.ledger for listed in self.listed]
        assert ids == sorted(set(ids)), ids
        assert not ids or 0 < self.first_ledger <= ids[0], (self.first_ledger, ids)
        assert not ids or self.dropped_through < (ids[0], 0), (self.dropped_through, ids)
        assert all(listed.last_entry is not None for listed in self.listed[:-1]), self.listed
        assert not ids or self.listed[-1].last_entry is None, self.listed[-1]

    @property
    def leader_address(self) -> str:
        """The address of the leader, "" if nobody leads."""
        leader = self.leader
        leads = leader is not None and leader.epoch == self.epoch and not leader.resigned
        return leader.address if leader is not None and leads else ""

    @property
    def ledgers(self) -> tuple[int, ...]:
        """The ids of the ledgers that are kept, ascending."""
        return tuple(listed.ledger for listed in self.listed)

    @property
    def full_history(self) -> bool:
        """Whether nothing was ever dropped: the log can be read from START."""
        return not self.listed or self.listed[0].ledger == self.first_ledger

    @property
    def first_position_kept(self) -> Position:
        """Where the first entry that is kept stands, or will stand; START before any ledger."""
        return Position(self.listed[0].ledger, 0) if self.listed else START

    @property
    def last_before(self) -> Position:
        """The newest entry of all ledgers but the last; it never changes under this list."""
        for listed in reversed(self.listed[:-1]):
            assert listed.last_entry is not None
            if listed.last_entry != NO_ENTRY:
                return Position(listed.ledger, listed.last_entry)
        return self.dropped_through

    def knows(self, position: Position) -> bool:
        """Whether a position is of this log, and not of one that had its name before."""
        return position == START or 0 < self.first_ledger <= position.ledger

    def keeps_after(self, position: Position) -> bool:
        """Whether every entry after a position is kept."""
        return self.knows(position) and position >= self.dropped_through

    def with_ledger(self, ledger: int, listed_ms: int, before_last_entry: int | None) -> "LogList":
        """Add a ledger at the end; `before_last_entry` is where the one before it was closed."""
        kept = self.listed
        if kept:
            assert before_last_entry is not None, "the ledger before it is not known to be closed"
            closed = msgspec.structs.replace(kept[-1], last_entry=before_last_entry)
            kept = (*kept[:-1], closed)
        return msgspec.structs.replace(
            self,
            listed=(*kept, Listed(ledger, listed_ms)),
            first_ledger=self.first_ledger or ledger,
        )


_decode = msgspec.msgpack.Decoder(LogList).decode


def decode_list(value: bytes) -> LogList:
    """Decode a stored value. Raises `FormatTooNew`, `CannotRead`."""
    try:
        check_major(value, "the list of a log", FORMAT_MAJOR)
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the list of a log is damaged: {error}") from error


def encode_list(found: LogList) -> bytes:
    """A list as the metadata store keeps it."""
    return encode_major(found, found.format_major)


class HeldList(msgspec.Struct, frozen=True):
    """A list with the store's version of it; None: there is no list yet."""

    list: LogList
    version: int | None


class LogLists:
    """The list of one log, in the cluster's metadata store."""

    def __init__(self, store: MetadataStore, name: str, rng: random.Random) -> None:
        check_name(name)
        self.name = name
        self.key = f"{LOGS}/{name}/list"
        self._store = store
        self._rng = rng

    async def read(self) -> HeldList:
        """The list as this session sees it, perhaps a little old.

        Raises `MetadataUnavailable`, and `CannotRead` for one that is damaged or was lost.
        """
        found = await self._store.get(self.key)
        if found is None:
            held = HeldList(LogList(), None)
        else:
            held = HeldList(decode_list(found.value), found.version)
        if not held.list.listed:
            await self._check_not_lost()
        return held

    async def read_fresh(self) -> HeldList:
        """The list with every write that had returned before the call."""
        await self._store.sync()
        return await self.read()

    async def update(self, held: HeldList, change: Callable[[LogList], LogList | None]) -> HeldList:
        """Change the list by compare-and-set until it holds or is not wanted any more.

        `change(current)` returns the wanted value, or None when `current` is to stay; it may raise
        to give up. It is asked again with the fresh value after each conflict, so it must know
        what it has already done. A value that carries this call's token is this call's own.
        Raises `MetadataUnavailable`, after which the change may have been made.
        """
        token = self._rng.getrandbits(63)
        for _ in range(_ATTEMPTS_MAX):
            wanted = change(held.list)
            if wanted is None:
                return held
            wanted = msgspec.structs.replace(wanted, token=token)
            _check_step(held.list, wanted)
            try:
                return HeldList(wanted, await self._write(wanted, held.version))
            except (KeyExists, VersionConflict, MetadataUnavailable):
                held = await self.read_fresh()
                if held.list.token == token:
                    return held
        raise MetadataUnavailable(f"log {self.name}: not settled after {_ATTEMPTS_MAX} attempts")

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the list may have changed; returns the way to stop."""
        return self._store.watch(self.key, changed)

    async def _check_not_lost(self) -> None:
        ledgers = (await lost_logs(self._store)).get(self.name)
        if ledgers is not None:
            raise CannotRead(
                f"the list of log {self.name} was lost with the metadata, {ledgers} of its "
                "ledgers came back: bring the metadata store back from a backup, or let it "
                "begin anew without them (`herdbook repair forget-log`)"
            )

    async def _write(self, wanted: LogList, version: int | None) -> int:
        if version is None:
            return await self._store.create(self.key, encode_list(wanted))
        return await self._store.set(self.key, encode_list(wanted), version)


def raised_from(
    epoch: int, leader: Leader | None = None, check: Callable[[], None] | None = None
) -> Callable[[LogList], LogList]:
    """The change to the next epoch: from then on no older leader can list a ledger.

    `leader` was elected, and leads in it. It raises `Deposed` if the current epoch is another one,
    and what `check` raises, which is called before each attempt.
    """

    def change(current: LogList) -> LogList:
        if check is not None:
            check()
        check_epoch(current, epoch)
        raised = msgspec.structs.replace(current, epoch=epoch + 1)
        if leader is None:
            return raised
        named = msgspec.structs.replace(leader, epoch=epoch + 1)
        return msgspec.structs.replace(raised, leader=named, format_major=FORMAT_MAJOR)

    return change


def resigned(leader: Leader) -> Callable[[LogList], LogList | None]:
    """The change by which a leader makes room for another one.

    It ends the attempt of `leader` and no other one. If the write that was to name it has not
    arrived yet, it never will.
    """

    def change(current: LogList) -> LogList | None:
        if current.epoch < leader.epoch:
            # Any write does: the late one expects the version before it.
            return current
        if current.leader != leader:
            return None
        given_up = msgspec.structs.replace(leader, resigned=True)
        return msgspec.structs.replace(current, leader=given_up)

    return change


def removing(epoch: int) -> Callable[[LogList], LogList]:
    """The change that leaves nothing but the epoch and who led last.

    It raises `Deposed` under another epoch.
    """

    def change(current: LogList) -> LogList:
        check_epoch(current, epoch)
        return emptied(current)

    return change


def emptied(current: LogList) -> LogList:
    """The list of a log that is removed."""
    return LogList(current.epoch, leader=current.leader, format_major=current.format_major)


def listing(
    epoch: int, ledger: int, before_last_entry: int | None, now_ms: int
) -> Callable[[LogList], LogList | None]:
    """The change that lists a ledger under an epoch. It raises `Deposed` under another one."""

    def change(current: LogList) -> LogList | None:
        check_epoch(current, epoch)
        if current.listed and current.listed[-1].ledger == ledger:
            return None
        return current.with_ledger(ledger, now_ms, before_last_entry)

    return change


def check_epoch(current: LogList, epoch: int) -> None:
    """Raises `Deposed` unless the epoch still stands."""
    assert current.epoch >= epoch, "an epoch went back"
    if current.epoch != epoch:
        raise Deposed(f"epoch {epoch} is over: another leader began epoch {current.epoch}")


def check_name(name: str) -> None:
    """Raises `InvalidRequest` for what is no name of a log."""
    if len(name) > NAME_BYTES_MAX:
        raise InvalidRequest(f"a log's name has at most {NAME_BYTES_MAX} bytes: {name[:50]!r}...")
    for part in name.split("/"):
        if not _PART.fullmatch(part) or part in (".", ".."):
            raise InvalidRequest(
                f"a log's name is a path of ASCII letters, digits, '-', '_', '.': {name!r}"
            )
        if part in _KEYS_OF_A_LOG:
            raise InvalidRequest(f"{part!r} cannot be part of a log's name: {name!r}")


def _check_step(old: LogList, new: LogList) -> None:
    """Assert that a change keeps what must never change."""
    assert new.epoch >= old.epoch, (old.epoch, new.epoch)
    assert new.format_major >= old.format_major and (old.leader is None or new.leader is not None)
    if old.listed and not new.listed:
        removed = msgspec.structs.replace(emptied(old), token=new.token)
        assert new == removed, "a removal leaves the epoch, and who led"
        return
    assert new.dropped_through >= old.dropped_through
    assert old.first_ledger in (0, new.first_ledger)
    if old.listed:
        assert new.listed and new.ledgers[-1] >= old.ledgers[-1], "the last ledger stays"
