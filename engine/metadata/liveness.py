"""Which processes are alive: each renews one record, whatever number of logs it leads.

    /processes/ID    a `Record`; every incarnation of a process has an ID of its own

A process writes its record several times per lease. Each write that returns renews the lease,
counted from the moment before the write was sent. Another process that wants to take over from it
watches the record until it has not changed for a whole lease, by its own monotonic clock, and then
ends it by compare-and-set. The process learns of that with its next write, and begins a new
incarnation. Leases are those of Gray and Cheriton (SOSP 1989); one record for all that a process
leads is CockroachDB's idea (RFC "range leases", epoch-based leases).

Invariants (`tests/leadership/model.py` checks them over every order of all messages):
- A lease ends, by its holder's clock, before anybody ends the record: whoever ends it saw the last
  change of the record after that was sent, and waits from there for the longer of both leases and
  for the clocks' drift.
- An incarnation that has ended never comes back: IDs are random, and nobody renews an ended record.
- A lease ends as soon as one of its holder's clocks, monotonic or wall, says so: a machine that was
  paused and whose wall clock was then corrected has no lease left.
- A record that is missing was removed by hand, or long after its end: it is waited for, too.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from engine.errors import (
    CannotRead,
    EngineError,
    FormatTooNew,
    KeyExists,
    MetadataUnavailable,
    VersionConflict,
)
from engine.metadata.contract import MetadataStore
from engine.metadata.majors import FIRST_MAJOR, LAYOUT_MAJOR, check_major, encode_major
from engine.metadata.takeovers import Takeovers
from engine.ports.clock import Clock

PROCESSES: Final = "/processes"
FORMAT_MAJOR: Final = 1
_RENEWALS_A_LEASE: Final = 4
_LOOKS_A_LEASE: Final = 8
_LOOK_S: Final = 0.01
"""At most this often per other process: with hundreds of them, takeovers wait a little longer."""
_ENDED_KEPT_S: Final = 60.0
_SWEPT_LEASES: Final = 3
_TAKEOVERS: Final = 16
_logger = logging.getLogger(__name__)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the key of a process holds."""

    lease_ms: int
    number: int = 0
    ended: bool = False
    layout: int = FIRST_MAJOR
    """The newest layout of keys that the process can read (`engine.metadata.majors`)."""
    format_major: int = FIRST_MAJOR


class _Moment(NamedTuple):
    """A point in time, by both clocks of a machine."""

    monotonic_s: float
    wall_ms: int


_decode = msgspec.msgpack.Decoder(Record).decode


def decode_record(value: bytes) -> Record:
    """Decode the key's value. Raises `FormatTooNew`, `CannotRead`."""
    try:
        check_major(value, "the record of a process", FORMAT_MAJOR)
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"the record of a process is damaged: {error}") from error


def _encode(record: Record) -> bytes:
    return encode_major(record, FORMAT_MAJOR)


def key_of(process_id: str) -> str:
    """The key of a process's record."""
    return f"{PROCESSES}/{process_id}"


class Liveness:
    """The lease of this process, and its view of the other processes' leases.

    All methods are called on the event loop. Nothing is written or read before the first call.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        rng: random.Random,
        lease_ms: int,
        clock_drift: float,
    ) -> None:
        self.lease_ms = lease_ms
        self._store = store
        self._clock = clock
        self._rng = rng
        self._drift = clock_drift
        self._current: Incarnation | None = None
        self._changed = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._chores: asyncio.Task[None] | None = None
        self._others: dict[str, Other] = {}
        self._removing: dict[str, float] = {}
        self._unfinished: list[Callable[[], Awaitable[None]]] = []
        self._closed = False
        self.takeovers = Takeovers(_TAKEOVERS)
        """Hold a turn while a log is taken over."""

    async def incarnation(self) -> "Incarnation":
        """This process's incarnation that is not over; waits until there is one."""
        if self._renewing is None and not self._closed:
            self._renewing = asyncio.create_task(self._renew(), name="process lease")
            self._sweeping = asyncio.create_task(self._sweep(), name="sweep of processes")
            self._sweeping.add_done_callback(_heard)
        while self._current is None or self._current.over.is_set():
            self._changed.clear()
            await self._changed.wait()
        return self._current

    def watch(self, process_id: str, lease_ms: int, over: Callable[[], None]) -> "Other":
        """Watch another process, and end its incarnation when its lease has expired.

        `lease_ms` is its lease as far as is known. `over` is called, once, when its lease has
        ended for good. Call `unwatch` with the result.
        """
        other = self._others.get(process_id)
        if other is None:
            # It may have renewed its lease just now.
            other = self._others[process_id] = Other(process_id, self._clock.monotonic(), lease_ms)
        elif other.version < 0 and lease_ms > other.lease_ms:
            # Its record is missing, and whoever watched it before did not know its lease.
            other.lease_ms = lease_ms
            other.over = other.over and self._clock.monotonic() >= self._expiry_s(other)
        other.listeners[over] = other.listeners.get(over, 0) + 1
        if self._looking is None and not other.over and not self._closed:
            self._looking = asyncio.create_task(self._look(), name="leases of other processes")
        return other

    def unwatch(self, other: "Other", over: Callable[[], None]) -> None:
        """Stop watching another process."""
        other.listeners[over] -= 1
        if not other.listeners[over]:
            del other.listeners[over]
        if not other.listeners and self._others.get(other.process_id) is other:
            del self._others[other.process_id]

    def see_to(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something of a log that this process led, as soon as the store answers.

        It is tried several times a lease, until it raises no `MetadataUnavailable` any more.
        """
        self._unfinished.append(work)
        self._start_chores()

    async def close(self) -> None:
        """End this process's incarnation. What it led, others may take at once."""
        self._closed = True
        running = (self._renewing, self._looking, self._sweeping, self._chores)
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._current is not None and not self._current.over.is_set():
            await self._current.end()

    # The own record

    async def _renew(self) -> None:
        """Renew the record, and begin a new incarnation whenever one is over."""
        pause_s = self.lease_ms / 1000 / _RENEWALS_A_LEASE
        while True:
            try:
                current = self._current
                if current is None or current.over.is_set():
                    await self._begin()
                else:
                    await current.renew()
            except (EngineError, TimeoutError):
                pass
            except Exception:
                # A renewal that fails for whatever reason is a renewal that was left out.
                _logger.exception("the lease of this process could not be renewed")
            await asyncio.sleep(pause_s)

    async def _begin(self) -> None:
        record = Record(self.lease_ms, layout=LAYOUT_MAJOR)
        while True:
            process_id = f"{self._rng.getrandbits(64):016x}"
            sent = _now(self._clock)
            # If the reply is lost, the record stays behind, and another process ends it.
            with contextlib.suppress(KeyExists):
                async with asyncio.timeout(self.lease_ms / 1000):
                    version = await self._store.create(key_of(process_id), _encode(record))
                break
        self._current = Incarnation(self._store, self._clock, process_id, record, version, sent)
        self._changed.set()

    # The others' records

    async def _look(self) -> None:
        """Look at the records of all processes that are watched, until none is left."""
        try:
            while waiting := [other for other in self._others.values() if not other.over]:
                began_s = self._clock.monotonic()
                # One that hangs must not keep the others from being looked at.
                await asyncio.gather(*(self._look_at(other) for other in waiting))
                least_s = _LOOK_S * len(waiting)
                usual_s = self.lease_ms / 1000 / _LOOKS_A_LEASE
                soonest_s = min(self._expiry_s(other) for other in waiting) - began_s
                due_s = soonest_s if soonest_s > 0 else usual_s
                # A draw keeps processes from ending the same record at the same moment.
                draw_s = self._rng.random() * 0.02
                await asyncio.sleep(max(min(usual_s, due_s), least_s) + draw_s)
        finally:
            self._looking = None

    def _expiry_s(self, other: "Other") -> float:
        lease_ms = max(self.lease_ms, other.lease_ms)
        return other.seen_s + lease_ms / 1000 * (1 + self._drift)

    async def _look_at(self, other: "Other") -> None:
        try:
            async with asyncio.timeout(self.lease_ms / 1000):
                found = await self._store.get(key_of(other.process_id))
                record = None if found is None else self._decoded(other, found.value)
                version = -1 if found is None else found.version
                now_s = self._clock.monotonic()
                # If the store did not answer, it may not have answered the other process either:
                # then that one has a whole lease to renew its record.
                if other.unseen or version != other.version:
                    other.version, other.seen_s, other.unseen = version, now_s, False
                if record is not None:
                    other.lease_ms = record.lease_ms
                if record is not None and record.ended:
                    self._tell(other)
                elif now_s >= self._expiry_s(other):
                    if record is not None:
                        ended = msgspec.structs.replace(record, ended=True)
                        key, value = key_of(other.process_id), _encode(ended)
                        await self._store.set(key, value, version)
                        self._remove_later(other.process_id)
                    self._tell(other)
        except VersionConflict:
            # It has renewed its record, or somebody else has ended it.
            return
        except (EngineError, TimeoutError) as error:
            other.unseen = True
            if isinstance(error, FormatTooNew):
                self._report(other, error)
        except Exception:
            _logger.exception("the record of process %s could not be looked at", other.process_id)

    def _decoded(self, other: "Other", value: bytes) -> Record:
        try:
            return decode_record(value)
        except CannotRead as error:
            # Its owner cannot renew it any more. It is waited for, and then ended.
            self._report(other, error)
            return Record(other.lease_ms)

    def _report(self, other: "Other", error: EngineError) -> None:
        if str(error) != other.trouble:
            other.trouble = str(error)
            _logger.error("process %s: %s", other.process_id, error)

    def _tell(self, other: "Other") -> None:
        other.over = True
        for listener in list(other.listeners):
            listener()

    async def _sweep(self) -> None:
        """Look for the records of processes that are long gone, and see to it that they go.

        Raises nothing that matters: the next process that starts does it again.
        """
        own = self._current
        names = await self._store.children(PROCESSES)
        found = [self.watch(name, self.lease_ms, _nothing) for name in names]
        await asyncio.sleep(_SWEPT_LEASES * self.lease_ms / 1000)
        for other in found:
            self.unwatch(other, _nothing)
            if other.over and (own is None or other.process_id != own.process_id):
                self._remove_later(other.process_id)

    # Not urgent

    def _remove_later(self, process_id: str) -> None:
        self._removing[process_id] = self._clock.monotonic() + _ENDED_KEPT_S
        self._start_chores()

    def _start_chores(self) -> None:
        if self._chores is None and not self._closed:
            self._chores = asyncio.create_task(self._do_chores(), name="chores of process leases")

    async def _do_chores(self) -> None:
        """Finish what is left to do, without delaying the renewal of the lease."""
        try:
            while self._unfinished or self._removing:
                await asyncio.sleep(self.lease_ms / 1000 / _RENEWALS_A_LEASE)
                try:
                    while self._unfinished:
                        await self._unfinished[0]()
                        self._unfinished.pop(0)
                    await self._remove_ended()
                except MetadataUnavailable:
                    pass
                except Exception:
                    _logger.exception("something of a log that was led could not be done")
                    self._unfinished[:1] = []
        finally:
            self._chores = None

    async def _remove_ended(self) -> None:
        now_s = self._clock.monotonic()
        for process_id in [name for name, at_s in self._removing.items() if at_s <= now_s]:
            key = key_of(process_id)
            found = await self._store.get(key)
            # A damaged record stays for whoever looks into it.
            with contextlib.suppress(VersionConflict, CannotRead, FormatTooNew):
                if found is not None and decode_record(found.value).ended:
                    await self._store.delete(key, found.version)
            del self._removing[process_id]


class Other:
    """Another process, as its record shows it."""

    def __init__(self, process_id: str, seen_s: float, lease_ms: int) -> None:
        self.process_id = process_id
        self.seen_s = seen_s
        self.lease_ms = lease_ms
        self.over = False
        """Whether its lease has ended for good."""
        self.version = -2
        self.unseen = False
        """Whether the last look at its record failed."""
        self.trouble = ""
        self.listeners: dict[Callable[[], None], int] = {}


class Incarnation:
    """One life of this process: it has a lease until the record is ended."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        process_id: str,
        record: Record,
        version: int,
        sent: _Moment,
    ) -> None:
        self.process_id = process_id
        self.over = asyncio.Event()
        """Set when others may have taken over what it led."""
        self.on_renewal: dict[object, Callable[[], None]] = {}
        """Called after each try to renew the lease and at the end, on the event loop."""
        self._store = store
        self._clock = clock
        self._record = record
        self._version = version
        self._prolong(sent)

    def holds(self) -> bool:
        """Whether nobody can have ended the incarnation up to this moment. Any thread may ask."""
        return (
            not self.over.is_set()
            and self._clock.monotonic() < self._lease_end_s
            and self._clock.wall_ms() < self._lease_end_wall_ms
        )

    async def renew(self) -> None:
        """Write the record once more. Raises nothing if the store does not answer."""
        sent = _now(self._clock)
        self._record = msgspec.structs.replace(self._record, number=self._record.number + 1)
        try:
            # A store that is slow once must not cost the lease: the next renewal asks again.
            async with asyncio.timeout(self._record.lease_ms / 2000):
                key, value = key_of(self.process_id), _encode(self._record)
                self._version = await self._store.set(key, value, self._version)
            self._prolong(sent)
        except (MetadataUnavailable, TimeoutError):
            pass
        except VersionConflict:
            await self._settle()
        if not self.over.is_set():
            self._tell()

    async def end(self) -> None:
        """Give the lease back. The incarnation is over from the moment before that is sent."""
        self._stop()
        self._record = msgspec.structs.replace(self._record, ended=True)
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(self._record.lease_ms / 1000):
                key, value = key_of(self.process_id), _encode(self._record)
                try:
                    await self._store.set(key, value, self._version)
                except VersionConflict:
                    # A renewal was under way, or another process has ended the record.
                    found = await self._store.get(key)
                    if found is not None and not decode_record(found.value).ended:
                        await self._store.set(key, value, found.version)

    async def _settle(self) -> None:
        """Find out whether an earlier renewal was written, or another process ended the record."""
        try:
            async with asyncio.timeout(self._record.lease_ms / 2000):
                found = await self._store.get(key_of(self.process_id))
        except (MetadataUnavailable, TimeoutError):
            return
        if found is None or decode_record(found.value).ended:
            self._stop()
            return
        # An earlier renewal whose reply was lost. The next one prolongs the lease.
        self._version = found.version

    def _prolong(self, sent: _Moment) -> None:
        self._lease_end_s = sent.monotonic_s + self._record.lease_ms / 1000
        self._lease_end_wall_ms = sent.wall_ms + self._record.lease_ms

    def _stop(self) -> None:
        self.over.set()
        self._tell()

    def _tell(self) -> None:
        for told in list(self.on_renewal.values()):
            try:
                told()
            except Exception:
                _logger.exception("a log that is led could not be checked")


def _nothing() -> None:
    """Nobody waits for the end of a process that is swept."""


def _heard(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()


def _now(clock: Clock) -> _Moment:
    return _Moment(clock.monotonic(), clock.wall_ms())
