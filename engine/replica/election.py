"""Who leads a log: the list of the log names its leader, whose process has a lease.

A replica that wants to lead reads the list. If the leader that it names has not resigned, the
replica waits until the lease of that leader's process has ended (`engine.metadata.liveness`). Then
one compare-and-set of the list raises the epoch and names the new leader. Nothing is written while
the leader stays, so an idle log costs the metadata store nothing.

Invariants (`tests/leadership/model.py` checks them over every order of all messages):
- The epoch is raised only from a list whose leader no longer had a lease. So the leader of a later
  epoch never acknowledged anything while the leader of an earlier one answered reads.
- A leader answers under the lease of the incarnation that the list names for its epoch, and under
  no other one.
- A leader that resigns answers nothing from the moment before it sends that. It sends it again
  until it is written or its process has ended: otherwise nobody else could lead the log. A
  resignation ends one attempt. The replica may have been elected again before it is written.
- A candidate that defers to others waits that much longer, and no longer: it is only a preference.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from engine.errors import MetadataUnavailable
from engine.ledger.client import LedgerClient
from engine.log.log import ReplicatedLog
from engine.log.log_list import LOGS, HeldList, Leader, LogList
from engine.metadata.contract import MetadataStore
from engine.metadata.liveness import Incarnation, Liveness, Other
from engine.metadata.takeovers import Place
from engine.ports.clock import Clock

_ELECTIONS: Final = 16
_OLD_LOOKS_A_LEASE: Final = 4
_OLD_DRIFT: Final = 1.05
"""The older programs allowed for clocks whose speeds differ by 5 %."""


class Election:
    """One replica's view of who leads. All methods are called on the event loop."""

    def __init__(
        self, client: LedgerClient, log: ReplicatedLog, *, replica: str, address: str
    ) -> None:
        self._log = log
        self._store = client.store
        self._clock: Clock = client.clock
        self._rng: random.Random = client.rng
        self._liveness: Liveness = client.liveness
        self._replica = replica
        self._address = address
        self._deference_s = 0.0
        self._seen = LogList()
        self._elections: deque[tuple[int, str]] = deque(maxlen=_ELECTIONS)
        """The latest elections that were seen: epoch and address."""
        self._free_s: float | None = None
        """Since when nobody has led, by what was seen."""
        self._other: Other | None = None
        self._old = _OldKey(client.store, log.name, client.clock, client.liveness.lease_ms)
        self._changed = asyncio.Event()
        self._unwatch = log.watch(self._changed.set)
        self.turn = Place(self._liveness.takeovers, self._changed.set)
        """Its place in the queue for takeovers. An elected replica leaves it after its takeover."""

    @property
    def leader(self) -> str:
        """The address of who led when the list was last looked at, "" if nobody did."""
        return "" if self.vacant else self._seen.leader_address

    @property
    def vacant(self) -> bool:
        """Whether the last leader has resigned, or its lease has ended, and no other is known.

        It says nothing while this replica leads, nor before it campaigns.
        """
        return self._free_s is not None

    def defer(self, seconds: float) -> None:
        """From now on, give others this much time to be elected first; 0: none."""
        if seconds != self._deference_s:
            self._deference_s = seconds
            self._changed.set()

    async def follow(self) -> None:
        """Note who leads whenever the list changes. Raises `FormatTooNew`, `CannotRead`."""
        while True:
            self._changed.clear()
            pause_s: float | None = self._liveness.lease_ms / 1000
            with contextlib.suppress(MetadataUnavailable):
                await self.look()
                pause_s = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def look(self) -> None:
        """See who leads. Raises `MetadataUnavailable`, `FormatTooNew`, `CannotRead`."""
        self._note((await self._log.seen()).list)

    def elected(self, epoch: int) -> None:
        """Note that this replica leads. While it does, it does not read the list."""
        self._elections.append((epoch, self._address))

    def elected_since(self, epoch: int) -> set[str]:
        """The addresses of the leader of an epoch and of everyone elected after it."""
        return {address for own, address in self._elections if own >= epoch}

    async def campaign(
        self,
        able: Callable[[], bool],
        healthy: Callable[[], bool],
        written_s: Callable[[], float],
    ) -> "Holding":
        """Wait until this replica may lead: `ReplicatedLog.lead` decides whether it does.

        It also waits until it is `able()` and has a `turn`: `written_s()`, when the log was last
        written, decides its place in the queue. A leader that is not `healthy()` for a whole lease
        loses the lead.
        Raises `FormatTooNew`, `CannotRead`; whatever is unavailable is tried again.
        """
        while True:
            self._changed.clear()
            pause_s: float | None = self._liveness.lease_ms / 1000
            try:
                held = await self._log.seen()
                self._note(held.list)
                incarnation = await self._liveness.incarnation()
                pause_s = await self._pause_s(incarnation, held.list)
                if pause_s is None or pause_s > 0:
                    self.turn.leave()
                elif not able():
                    self.turn.leave()
                    pause_s = self._liveness.lease_ms / 1000
                elif self.turn.ask(written_s(), first=not self._deference_s):
                    return Holding(self, incarnation, held, healthy)
                else:
                    # Until this replica has a turn, or the list changes.
                    pause_s = None
            except MetadataUnavailable:
                self.turn.leave()
            if pause_s is not None:
                # A draw keeps candidates from trying at the same moment again and again.
                pause_s = max(pause_s, 0.0) + self._rng.random() * 0.02
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _pause_s(self, incarnation: Incarnation, now: LogList) -> float | None:
        """How long to wait before the next look; None: until something changes."""
        now_s = self._clock.monotonic()
        if self._free_s is None and await self._free(incarnation, now):
            self._free_s = now_s
        if self._free_s is not None:
            return self._free_s + self._deference_s - now_s
        return self._old.pause_s if now.leader is None else None

    def _note(self, now: LogList) -> None:
        if (now.epoch, now.leader) != (self._seen.epoch, self._seen.leader):
            self._free_s = None
            named = now.leader
            if named is not None and (named.epoch, named.address) not in self._elections:
                self._elections.append((named.epoch, named.address))
        self._seen = now

    async def _free(self, incarnation: Incarnation, now: LogList) -> bool:
        """Whether nobody else leads, nor can answer as the leader that the list names."""
        leader = now.leader
        if leader is None:
            self._watch(None)
            return now.epoch == 0 or await self._old.free()
        own = (leader.process, leader.replica) == (incarnation.process_id, self._replica)
        if leader.resigned or own:
            self._watch(None)
            return True
        self._watch(leader)
        return self._other is not None and self._other.over

    def _watch(self, leader: Leader | None) -> None:
        """Watch the process of this leader, and no other one."""
        other = self._other
        if other is not None and (leader is None or other.process_id != leader.process):
            self._liveness.unwatch(other, self._changed.set)
            self._other = None
        if leader is not None and self._other is None:
            self._other = self._liveness.watch(leader.process, leader.lease_ms, self._changed.set)

    def close(self) -> None:
        """Stop watching."""
        self._unwatch()
        self._watch(None)


class Holding:
    """The right to lead in one epoch, for as long as the lease of the process holds."""

    def __init__(
        self,
        election: Election,
        incarnation: Incarnation,
        after: HeldList,
        healthy: Callable[[], bool],
    ) -> None:
        self.after: HeldList | None = after
        """The list by which it was elected."""
        self.epoch = after.list.epoch + 1
        self.leader: Leader | None = Leader(
            process=incarnation.process_id,
            replica=election._replica,
            address=election._address,
            lease_ms=election._liveness.lease_ms,
            attempt=election._rng.getrandbits(63),
        )
        self.lost = asyncio.Event()
        """Set when it may not lead any more, or cannot."""
        self._log = election._log
        self._liveness = election._liveness
        self._clock = election._clock
        self._incarnation = incarnation
        self._healthy = healthy
        self._healthy_s = self._clock.monotonic()
        self.lapsed = asyncio.Event()
        """Set when its lease has run out and may be renewed: it may have been replaced."""
        self.ill = False
        """Whether it was lost because it was not healthy for a whole lease."""
        self.lease_ms = election._liveness.lease_ms
        incarnation.on_renewal[self] = self._on_renewal
        self._on_renewal()

    def holds(self) -> bool:
        """Whether nobody else can have been elected up to this moment. Any thread may ask."""
        return not self.lost.is_set() and self._incarnation.holds()

    async def resign(self) -> None:
        """Let another replica lead at once. If the store does not answer, this is retried.

        It is also retried if the caller is cancelled. Otherwise nobody else could lead as long as
        this process is running.
        """
        self._lose()
        if self._incarnation.over.is_set():
            return
        try:
            await self._resign()
        except MetadataUnavailable:
            self._liveness.see_to(self._resign)
        except asyncio.CancelledError:
            self._liveness.see_to(self._resign)
            raise

    async def _resign(self) -> None:
        assert self.leader is not None
        await self._log.resign(msgspec.structs.replace(self.leader, epoch=self.epoch))

    def _on_renewal(self) -> None:
        now_s = self._clock.monotonic()
        if self._incarnation.holds():
            self.lapsed.clear()
        else:
            self.lapsed.set()
        if self._healthy():
            self._healthy_s = now_s
        # If it does not work for a whole lease, another replica should try.
        self.ill = now_s - self._healthy_s >= self.lease_ms / 1000
        over = self._incarnation.over.is_set()
        if self.ill or over:
            self._lose()
        if self.ill and not over:
            # At once: the replica may hang for as long as it is ill.
            self._liveness.see_to(self._resign)

    def _lose(self) -> None:
        self.lost.set()
        self._incarnation.on_renewal.pop(self, None)


class Unopposed(Holding):
    """The lead of a log that has one replica by other means: there is no lease to lose."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.lapsed = asyncio.Event()
        self.lease_ms = self.epoch = 0
        self.leader = self.after = None
        self.ill = False

    def holds(self) -> bool:
        """As long as it was not given back."""
        return not self.lost.is_set()

    async def resign(self) -> None:
        """Give it back."""
        self.lost.set()


class _OldBeat(msgspec.Struct, frozen=True):
    """The part of the old key's value that still matters."""

    lease_ms: int = 0
    resigned: bool = False


_decode_old = msgspec.msgpack.Decoder(_OldBeat).decode


class _OldKey:
    """The key by which older programs elected a leader and renewed its lease.

    A list without a leader was written by them, or without an election. A replica of this version
    leads once the key has not changed for a whole lease. From then on, older programs refuse the
    list, because its format is newer.
    """

    def __init__(self, store: MetadataStore, log: str, clock: Clock, lease_ms: int) -> None:
        self._store = store
        self._key = f"{LOGS}/{log}/leader"
        self._clock = clock
        self._lease_ms = lease_ms
        self._version: int | None = None
        self._seen_s = 0.0
        self.pause_s = lease_ms / 1000 / _OLD_LOOKS_A_LEASE

    async def free(self) -> bool:
        """Whether its holder's lease has ended. Raises `MetadataUnavailable`."""
        found = await self._store.get(self._key)
        version = -1 if found is None else found.version
        lease_ms = self._lease_ms
        if found is not None:
            with contextlib.suppress(msgspec.MsgspecError):
                beat = _decode_old(found.value)
                if beat.resigned:
                    return True
                lease_ms = max(lease_ms, beat.lease_ms)
        now_s = self._clock.monotonic()
        if version != self._version:
            self._version, self._seen_s = version, now_s
        return now_s - self._seen_s > lease_ms / 1000 * _OLD_DRIFT
