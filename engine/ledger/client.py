"""The client of the ledger layer: create, open, delete, list.

Invariants:
- A ledger id is given once and never again, even after the ledger is deleted.
- A ledger is handed out for writing only after its metadata is stored.
- A ledger that is announced is announced before it exists, each try of its creation under an id of
  its own.
- Opening with recovery returns a reader only of a closed ledger.
"""

import asyncio
import logging
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

from engine import limits
from engine.errors import (
    AccessRefused,
    DiskFull,
    InvalidRequest,
    KeyExists,
    LedgerClosed,
    NotEnoughBookies,
    QuorumsInvalid,
    Unauthorized,
    Unavailable,
)
from engine.ledger.capacity import Capacity
from engine.ledger.cluster_time import ClusterTime
from engine.ledger.context import LedgerContext
from engine.ledger.keys import key_hash, key_matches, key_of
from engine.ledger.measures import ClientMeasures
from engine.ledger.owners import Owners
from engine.ledger.placement import Ensemble, Placement
from engine.ledger.quorum import Quorums
from engine.ledger.reader import LedgerReader
from engine.ledger.recovery import fence
from engine.ledger.recovery import recover as recover_ledger
from engine.ledger.settings import ClientSettings
from engine.ledger.troubles import Troubles
from engine.ledger.writer import LedgerWriter
from engine.metadata.bookies import Bookies
from engine.metadata.contract import MetadataStore
from engine.metadata.deadline import DeadlineStore
from engine.metadata.ledgers import HIDDEN_HASH, Fragment, Held, LedgerMetadata, Ledgers, Survives
from engine.metadata.liveness import Liveness
from engine.ports.clock import Clock
from engine.ports.metrics import NO_METRICS, Metrics
from engine.transport.contract import Transport, uses_reserve

Announce = Callable[[int], Awaitable[None]]
"""Writes down the id of a ledger to come, so that no ledger exists that nobody has heard of."""

_logger = logging.getLogger(__name__)


class LedgerClient:
    """Ledgers of one cluster, through its metadata store and its bookies.

    All methods are called on the event loop that runs the components given.
    """

    def __init__(
        self,
        *,
        store: MetadataStore,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        settings: ClientSettings | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self.settings = settings if settings is not None else ClientSettings()
        self.store: MetadataStore = DeadlineStore(store, self.settings.metadata_timeout_ms)
        """The cluster's metadata, each call with a deadline: for repair and for tools."""
        self.transport = transport
        """The way to the cluster's bookies: for repair and for tools."""
        self.clock = clock
        self.time = ClusterTime(clock, self.store)
        """The time by which things expire that other machines may have written."""
        self.rng = rng
        self.closed = asyncio.Event()
        """Set when the client is closed: what runs on by itself has to end."""
        self.liveness = Liveness(
            store=self.store,
            clock=clock,
            rng=rng,
            lease_ms=self.settings.lease_ms,
            clock_drift=self.settings.clock_drift,
        )
        """The lease by which this process leads logs."""
        self._ledgers = Ledgers(self.store, rng)
        self._bookies = Bookies(self.store)
        self.owners = Owners(self._ledgers)
        """Which ledgers belong to whom: for sweeps."""
        self._measures = ClientMeasures(metrics)
        self._troubles = Troubles()
        self._writers: weakref.WeakSet[LedgerWriter] = weakref.WeakSet()
        self.capacity = Capacity(self.settings.ack_quorum)
        """Whether new data finds room: to be asked before something is begun that writes some."""
        self._placement = Placement(
            self._bookies,
            rng,
            clock,
            self.settings.quarantine_ms,
            self.settings.host,
            self.capacity,
        )

    async def create_ledger(
        self,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        *,
        survives: Survives | None = None,
        password: bytes = b"",
        metadata: dict[str, bytes] | None = None,
        deferred_sync: bool = False,
        explicit_ids: bool = False,
        announce: Announce | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer.

        Each entry goes to `write_quorum` of `ensemble` bookies and is acknowledged when it is
        durable on `ack_quorum` of them: in two hosts, racks or zones if `survives` names one of
        these. The defaults are the client's settings. `metadata` is kept with the ledger and never
        changes. With `deferred_sync=True`, appends resolve as soon as they have an id; nothing is
        promised before `force()` returns. With `explicit_ids=True`, the caller chooses the ids.
        `announce` is awaited with the ledger's id before the ledger exists; its errors are raised.
        If it is called again, with another id, the ledger before is never used.
        Raises `QuorumsInvalid`, `InvalidRequest`, `NotEnoughBookies`, `MetadataUnavailable`,
        `DiskFull` unless `metadata` say that it `uses_reserve`, and `AccessRefused` when bookies
        that are needed want another proof than this client has.
        """
        quorums = self._quorums(ensemble, write_quorum, ack_quorum)
        survives, custom = self._survives(survives, quorums), _checked(metadata or {})
        context = self._context(key_of(password))
        refusal: AccessRefused | None = None
        while True:
            chosen = await self._chosen(quorums, survives, uses_reserve(custom), refusal)
            ledger_id = await self._ledgers.new_id()
            if announce is not None:
                await announce(ledger_id)
            strict = survives is not None
            held = await self._create(context, ledger_id, quorums, chosen, strict, custom)
            if held is None:
                continue
            writer = LedgerWriter(
                context, held, deferred_sync=deferred_sync, explicit_ids=explicit_ids
            )
            refused = await writer.start(chosen.absent)
            if not refused:
                self._writers.add(writer)
                return writer
            # Other bookies may accept this client. Each round leaves out those that refused it.
            refusal = await self._withdraw(writer, refused, chosen.bookies)

    async def _chosen(
        self,
        quorums: Quorums,
        survives: Survives | None,
        from_reserve: bool,
        refusal: AccessRefused | None,
    ) -> Ensemble:
        """Choose bookies for a new ledger.

        Raises `refusal`, if given, in place of any `Unavailable`; otherwise `DiskFull`, and as
        `Placement.new_ensemble`.
        """
        try:
            if not from_reserve:
                self.capacity.check_disks()
            return await self._placement.new_ensemble(
                quorums, survives=survives, from_reserve=from_reserve
            )
        except Unavailable as error:
            if refusal is not None:
                raise refusal from error
            if isinstance(error, NotEnoughBookies) and not from_reserve and self.capacity.lack:
                raise DiskFull(self.capacity.lack) from error
            raise

    async def _create(
        self,
        context: LedgerContext,
        ledger_id: int,
        quorums: Quorums,
        chosen: Ensemble,
        strict: bool,
        custom: dict[str, bytes],
    ) -> Held | None:
        """Store the metadata of a new ledger; None if another id is needed."""
        degraded = bool(chosen.absent)
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=quorums.ensemble,
            write_quorum=quorums.write,
            ack_quorum=quorums.ack,
            stripe_entries=quorums.stripe_entries,
            fragments=(Fragment(0, chosen.bookies, chosen.domains),),
            key_hash=key_hash(context.key),
            created_ms=self.clock.wall_ms(),
            token=0,
            degraded=degraded,
            custom=custom,
            survives=chosen.survives,
            strict=strict and chosen.survives != "bookie",
        )
        try:
            held = await self._ledgers.create(metadata)
        except KeyExists:
            # Ids are never reused, so this is the ledger of this call: the reply came so late that
            # somebody has closed or changed it meanwhile. It is left, like every ledger whose
            # creator never got a reply.
            _logger.warning("ledger %s was closed before its creator could use it", ledger_id)
            return None
        if degraded:
            await self._ledgers.request_repair(held.metadata.ledger_id, "created without a bookie")
        return held

    async def _withdraw(
        self, writer: LedgerWriter, refused: frozenset[str], chosen: tuple[str, ...]
    ) -> AccessRefused:
        """Delete a new ledger because bookies refused this client; nobody has used it."""
        refusal = AccessRefused(f"no ledger can be written{self._troubles.tell(chosen)}")
        for bookie_id in sorted(refused):
            self._placement.note_failure(bookie_id)
        writer.abandon(refusal)
        await self._ledgers.delete(writer.ledger_id)
        return refusal

    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = True
    ) -> LedgerReader:
        """Open a ledger for reading.

        `recover=True` fences its writer, if there is one, and closes it: afterwards its end never
        changes. `recover=False` leaves the writer alone and reads what is confirmed so far.
        Raises `NoSuchLedger`, `Unauthorized`, `RecoveryIncomplete`, `MetadataUnavailable`,
        `Unavailable` for a ledger that is being restored.
        """
        context, held = await self._held(ledger_id, password)
        if recover and not held.metadata.closed:
            held = await recover_ledger(context, held)
        reader = LedgerReader(context, held)
        if not held.metadata.closed:
            try:
                await reader.read_last_add_confirmed()
            except Unavailable:
                return reader
        return reader

    async def fence_ledger(self, ledger_id: int, *, password: bytes = b"") -> None:
        """Fence a ledger before it is deleted: no writer gets anything acknowledged any more.

        The end of the ledger is not determined, so this succeeds on full or damaged bookies, where
        opening the ledger would fail. Raises the same errors as `open_ledger`.
        """
        context, held = await self._held(ledger_id, password)
        if not held.metadata.closed:
            await fence(context, held)

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; bookies give its bytes back later. Raises `NoSuchLedger`."""
        await self._ledgers.delete(ledger_id)

    async def list_ledgers(self, *, after: int = -1, limit: int | None = None) -> list[int]:
        """The ids of all ledgers above `after`, ascending; with `limit` at most so many.

        Not a snapshot: others may create and delete. Of many ledgers, `limit` reads only a part.
        """
        found: list[int] = []
        async for page in self._ledgers.pages(after):
            found += page
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """What the metadata store knows of a ledger. Raises `NoSuchLedger`."""
        return (await self._ledgers.read(ledger_id)).metadata

    async def repairs(self) -> list[int]:
        """The ids of the ledgers that wait for a replica, ascending."""
        return await self._ledgers.repairs()

    def abandon_writers(self, reason: str) -> None:
        """End this client's writers; their ledgers stay open, to be recovered by who reads them."""
        for writer in list(self._writers):
            writer.abandon(LedgerClosed(f"ledger {writer.ledger_id}: {reason}"))

    async def close(self) -> None:
        """Close the connections and end all tails. Writers and readers do not work afterwards."""
        self.closed.set()
        self._placement.close()
        await self.liveness.close()
        await self.transport.close()
        await asyncio.sleep(0)

    async def _held(self, ledger_id: int, password: bytes) -> tuple[LedgerContext, Held]:
        held = await self._ledgers.read(ledger_id)
        context = self._context(key_of(password))
        expected = held.metadata.key_hash
        if expected != HIDDEN_HASH and not key_matches(context.key, expected):
            raise Unauthorized(f"ledger {ledger_id}: wrong password")
        return context, held

    def _quorums(self, ensemble: int | None, write: int | None, ack: int | None) -> Quorums:
        settings = self.settings
        if ensemble is None:
            ensemble = max(settings.ensemble, write or 0, ack or 0) if write or ack else None
            ensemble = ensemble or settings.ensemble
        if write is None:
            write = max(min(settings.write_quorum, ensemble), ack or 0)
        if ack is None:
            ack = min(settings.ack_quorum, write)
        if not limits.ENSEMBLE_SIZE_MAX >= ensemble >= write >= ack >= 1:
            raise QuorumsInvalid(
                f"ensemble {ensemble} >= write quorum {write} >= ack quorum {ack} >= 1 must hold, "
                f"and at most {limits.ENSEMBLE_SIZE_MAX} bookies"
            )
        return Quorums(ensemble, write, ack, settings.stripe_entries)

    def _survives(self, survives: Survives | None, quorums: Quorums) -> Survives | None:
        """The loss that the entries of a new ledger have to survive; None for the default."""
        wanted = self.settings.survives or None if survives is None else survives
        if wanted is not None and wanted not in get_args(Survives):
            raise InvalidRequest(
                f"survives must be one of {', '.join(get_args(Survives))}; got {wanted!r}"
            )
        if quorums.ack > 1 or wanted in (None, "bookie"):
            return wanted
        if survives is None:
            return "bookie"
        raise QuorumsInvalid(
            f"one bookie acknowledges each entry, so it cannot survive the loss of a {wanted}"
        )

    def _context(self, key: bytes) -> LedgerContext:
        return LedgerContext(
            ledgers=self._ledgers,
            bookies=self._bookies,
            placement=self._placement,
            transport=self.transport,
            clock=self.clock,
            rng=self.rng,
            settings=self.settings,
            measures=self._measures,
            key=key,
            troubles=self._troubles,
            closed=self.closed,
        )


def _checked(custom: Mapping[Any, Any]) -> dict[str, bytes]:
    """Custom metadata that can be stored. Raises `InvalidRequest`."""
    size_bytes = 0
    for name, value in custom.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise InvalidRequest(f"custom metadata must map str to bytes; got {name!r}: {value!r}")
        size_bytes += len(name.encode()) + len(value)
    if size_bytes > limits.CUSTOM_METADATA_BYTES_MAX:
        raise InvalidRequest(f"{size_bytes} bytes of custom metadata do not fit")
    return dict(custom)
