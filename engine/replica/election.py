"""Who leads: one key that its holder keeps beating, and that others take when the beat stops.

The key `/logs/NAME/leader` holds a `Beat`. Its holder writes it again several times a lease; each
write that returns prolongs the lease, counted from the moment before the write was sent. Who wants
the key waits until it has seen the same version for a whole lease, by its own monotonic clock, and
then takes it by compare-and-set. After Gray and Cheriton, "Leases" (SOSP 1989).

Invariants (`tests/leadership/model.py` checks them over every order of all messages):
- A lease ends, by its holder's clock, before anybody takes the key: the taker saw the holder's last
  beat after it was sent, and waits from there. It waits for the longer of the holder's lease and
  its own, and for the clocks' drift.
- The key is never removed, so its version only grows: a holder that comes back from a pause cannot
  mistake another's beat for its own. It outlives its log.
- Being elected is not leading: the epoch in the log's list decides that. It is raised only from
  the epoch that was read while the lease held: see `ReplicatedLog.lead`. So the leader of a later
  epoch was elected after the lease of the previous leader had ended.
- A lease ends as soon as one of its holder's clocks, monotonic or wall, says so: a machine that was
  paused and whose wall clock was then corrected has no lease left.
- Who defers to others waits so much longer than they, and no longer: a preference, not a rule.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from engine.errors import (
    CannotRead,
    KeyExists,
    MetadataUnavailable,
    VersionConflict,
)
from engine.log.log_list import LOGS
from engine.metadata.contract import MetadataStore, Versioned
from engine.metadata.majors import FIRST_MAJOR, check_major, encode_major
from engine.ports.clock import Clock

FORMAT_MAJOR: Final = 1
_BEATS_A_LEASE: Final = 4
_LOOKS_A_LEASE: Final = 4
_logger = logging.getLogger(__name__)


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the key holds. `token` tells one holding from every other."""

    replica: str
    address: str
    token: int
    number: int = 0
    epoch: int = 0
    lease_ms: int = 0
    resigned: bool = False
    format_major: int = FIRST_MAJOR


class _Moment(NamedTuple):
    """A point in time, by both clocks of a machine."""

    monotonic_s: float
    wall_ms: int


_decode = msgspec.msgpack.Decoder(Beat).decode


def _encoded(beat: Beat) -> bytes:
    return encode_major(beat, FORMAT_MAJOR)


def decode_beat(value: bytes) -> Beat:
    """Decode the key's value. Raises `FormatTooNew`, `CannotRead`."""
    try:
        check_major(value, "the key of a leader", FORMAT_MAJOR)
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise CannotRead(f"a leader's key is damaged: {error}") from error


def key_of(log_name: str) -> str:
    """The key by which a log's leader is elected."""
    return f"{LOGS}/{log_name}/leader"


class Election:
    """One replica's view of the key. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        rng: random.Random,
        key: str,
        replica: str,
        address: str,
        lease_ms: int,
        clock_drift: float,
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._key = key
        self._identity = Beat(replica, address, 0, lease_ms=lease_ms)
        self._drift = clock_drift
        self._deference_s = 0.0
        self._seen: Beat | None = None
        self._seen_version = -1
        # Whoever led before may have beaten just now.
        self._seen_s = clock.monotonic()
        self._seen_lease_ms = 0
        self._looked = self._removed = False
        self._tried: tuple[Beat, _Moment] | None = None
        self._changed = asyncio.Event()
        self._unwatch = store.watch(key, self._changed.set)

    @property
    def leader(self) -> str:
        """The address of who held the key when it was last looked at, "" if nobody did."""
        return "" if self._seen is None or self._seen.resigned else self._seen.address

    def defer(self, seconds: float) -> None:
        """From now on leave others so much time to take the key first; 0: none."""
        if seconds != self._deference_s:
            self._deference_s = seconds
            self._changed.set()

    async def campaign(self, *, first_ever: bool) -> "Holding":
        """Wait until the key can be taken, and take it.

        `first_ever`: nobody has ever led, so there is no lease to wait for.
        Raises `FormatTooNew`; whatever is unavailable is tried again.
        """
        while True:
            pause_s = self._identity.lease_ms / 1000 / _LOOKS_A_LEASE
            try:
                await self._look()
                holding = self._taken()
                pause_s = min(pause_s, self._remaining_s(first_ever))
                if holding is None and pause_s <= 0:
                    holding = await self._take()
                    pause_s = 0.0
                if holding is not None:
                    return holding
            except MetadataUnavailable:
                pass
            # A draw keeps candidates from trying at the same moment again and again.
            await self._wait_s(pause_s + self._rng.random() * 0.02)

    async def _wait_s(self, seconds: float) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def _look(self) -> None:
        """Read the key, and remember when this very beat was first seen."""
        found = await self._store.get(self._key)
        if found is not None:
            self._note(found)
        elif self._seen_version >= 0 or not self._looked:
            # Somebody may have removed it by hand, and its last holder may still have its lease.
            self._seen_s = self._clock.monotonic()
            self._removed = self._removed or self._seen_version >= 0
            self._seen, self._seen_version = None, -1
        self._looked = True

    def _note(self, found: Versioned) -> None:
        beat = decode_beat(found.value)
        if (found.version, beat) != (self._seen_version, self._seen):
            # It was sent before it was seen, at the latest just now: its lease may run from here.
            self._seen_s = self._clock.monotonic()
            self._seen, self._seen_version = beat, found.version
            self._seen_lease_ms = beat.lease_ms

    def _remaining_s(self, first_ever: bool) -> float:
        """How long the lease of the last holder may still run, and others are left to be first."""
        seen = self._seen
        free = seen.resigned if seen is not None else first_ever and not self._removed
        lease_ms = max(self._identity.lease_ms, self._seen_lease_ms)
        lease_s = 0.0 if free else lease_ms / 1000 * (1 + self._drift)
        return self._seen_s + lease_s + self._deference_s - self._clock.monotonic()

    def _taken(self) -> "Holding | None":
        """What an earlier try took, though its reply was lost."""
        if self._tried is None or self._seen is None or not _same(self._seen, self._tried[0]):
            return None
        beat, sent = self._tried
        self._tried = None
        # Its lease may have expired. The first beat shows whether it still holds the key.
        return Holding(self, beat, self._seen_version, sent)

    async def _take(self) -> "Holding | None":
        """Take the key from the version seen; None if somebody else was quicker."""
        beat = msgspec.structs.replace(self._identity, token=self._rng.getrandbits(63))
        sent = _now(self._clock)
        self._tried = (beat, sent)
        try:
            if self._seen_version < 0:
                version = await self._store.create(self._key, _encoded(beat))
            else:
                version = await self._store.set(self._key, _encoded(beat), self._seen_version)
        except (KeyExists, VersionConflict):
            await self._look()
            return self._taken()
        self._tried = None
        self._seen, self._seen_version = beat, version
        return Holding(self, beat, version, sent)

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()


class Holding:
    """The key, held: beats until it is lost or given back."""

    def __init__(self, election: Election, beat: Beat, version: int, sent: _Moment) -> None:
        self._election = election
        self._store = election._store
        self._clock = election._clock
        self._beat = beat
        self._version = version
        self._lease_end_s = sent.monotonic_s + beat.lease_ms / 1000
        self._lease_end_wall_ms = sent.wall_ms + beat.lease_ms
        self._renewed = asyncio.Event()
        self.lost = asyncio.Event()
        """Set when somebody else has the key, or it was given back."""
        self.epoch = 0
        """The epoch that the holder leads in, told with each beat for people to see."""

    def holds(self) -> bool:
        """Whether nobody else can have been elected up to this moment. Any thread may ask."""
        return (
            not self.lost.is_set()
            and self._clock.monotonic() < self._lease_end_s
            and self._clock.wall_ms() < self._lease_end_wall_ms
        )

    async def until_holds(self, timeout_ms: int) -> bool:
        """Wait for the next beat if the lease has run out; whether it holds then."""
        if not self.holds() and not self.lost.is_set():
            self._renewed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._renewed.wait()
        return self.holds()

    async def keep(self, healthy: Callable[[], bool]) -> None:
        """Beat until the key is lost. A holder that is not `healthy()` only looks who has it."""
        pause_s = self._beat.lease_ms / 1000 / _BEATS_A_LEASE
        while not self.lost.is_set():
            try:
                await (self._beat_once() if healthy() else self._settle())
            except Exception:
                # A beat that fails for whatever reason is a beat let out.
                _logger.exception("%s could not be beaten", self._election._key)
            await asyncio.sleep(pause_s)

    async def _beat_once(self) -> None:
        number = self._beat.number + 1
        self._beat = msgspec.structs.replace(self._beat, number=number, epoch=self.epoch)
        sent = _now(self._clock)
        try:
            # A store that is slow once must not cost the lease: the next beat asks again.
            async with asyncio.timeout(self._beat.lease_ms / 2000):
                if not self.holds():
                    # After a gap, somebody else may have the key, or have removed and recreated it.
                    await self._settle()
                    if self.lost.is_set():
                        return
                key, value = self._election._key, self._value()
                self._version = await self._store.set(key, value, self._version)
        except (MetadataUnavailable, TimeoutError):
            return
        except VersionConflict:
            await self._settle()
            return
        self._prolong(sent)

    async def resign(self) -> None:
        """Give the key back, so that another can take it at once. `keep` has ended before."""
        self._lose()
        self._beat = msgspec.structs.replace(self._beat, resigned=True)
        key = self._election._key
        with contextlib.suppress(MetadataUnavailable, VersionConflict):
            try:
                await self._store.set(key, self._value(), self._version)
            except VersionConflict:
                # One of its own beats may have been under way when `keep` ended.
                found = await self._store.get(key)
                if found is not None and _same(decode_beat(found.value), self._beat):
                    await self._store.set(key, self._value(), found.version)

    async def _settle(self) -> None:
        """Look who has the key: this holder, perhaps after a lost reply, or another one."""
        try:
            found = await self._store.get(self._election._key)
        except MetadataUnavailable:
            return
        if found is None:
            # Somebody removed the key by hand: it is nobody's now.
            self._lose()
            return
        self._election._note(found)
        if not _same(decode_beat(found.value), self._beat):
            self._lose()
            return
        # An earlier beat of this holder whose reply was lost. The next one prolongs the lease.
        self._version = found.version

    def _prolong(self, sent: _Moment) -> None:
        self._lease_end_s = sent.monotonic_s + self._beat.lease_ms / 1000
        self._lease_end_wall_ms = sent.wall_ms + self._beat.lease_ms
        self._renewed.set()

    def _lose(self) -> None:
        self.lost.set()
        self._renewed.set()

    def _value(self) -> bytes:
        return _encoded(self._beat)


def _now(clock: Clock) -> _Moment:
    return _Moment(clock.monotonic(), clock.wall_ms())


def _same(beat: Beat, other: Beat) -> bool:
    """Whether two beats belong to the same holding."""
    return (beat.token, beat.replica) == (other.token, other.replica)


class Unopposed(Holding):
    """The lead of a log that has one replica by other means: nothing to beat, nothing to lose."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.epoch = 0

    def holds(self) -> bool:
        """As long as it was not given back."""
        return not self.lost.is_set()

    async def until_holds(self, timeout_ms: int) -> bool:
        """At once."""
        return self.holds()

    async def keep(self, healthy: Callable[[], bool]) -> None:
        """Until it is given back."""
        await self.lost.wait()

    async def resign(self) -> None:
        """Give it back."""
        self.lost.set()
