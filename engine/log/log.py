"""An endless log made of ledgers: one writer at a time, any number of readers.

Invariants:
- A takeover raises the epoch, then closes the last listed ledger by recovery, then lists its own.
  So no older leader lists a ledger any more, none gets an append acknowledged any more, and all
  that any of them ever acknowledged is before the first entry of the new one.
- The epoch is raised only from the epoch that was read. A replica raises it only from a list whose
  leader's lease has ended. A caller that is late because of a slow call finds another epoch and is
  deposed.
- What is dropped is taken off the list first, then deleted: a reader that misses a ledger finds
  the reason in the list.
- A removal is a term of the log, without entries: it raises the epoch, closes the last ledger, then
  empties the list. Whoever comes back from an older term is deposed, also by a log that was given
  the name since; and a removal that comes back is, too.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from engine.errors import (
    CannotRead,
    Deposed,
    EngineError,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    RecoveryIncomplete,
    Unavailable,
)
from engine.ledger.client import LedgerClient
from engine.ledger.writer import LedgerWriter
from engine.log.log_list import (
    HeldList,
    Leader,
    LogList,
    LogLists,
    Pin,
    check_epoch,
    listing,
    raised_from,
    removing,
    resigned,
)
from engine.log.log_reader import Batch, LogReader
from engine.log.log_writer import LogWriter
from engine.log.position import Position, Span
from engine.log.settings import LogSettings
from engine.log.sweeping import PURPOSE_LOG, marks_of, sweep
from engine.log.truncation import pinned, truncated, unpinned
from engine.metadata.restoring import check_not_under_way
from engine.run import NO_ENTRY

LedgerIds = list[int]
Spans = list[Span]


class ReplicatedLog:
    """One log of a cluster, by its name: letters, digits, '-', '_', '.', and '/' as in a path.

    Making one does nothing yet. All methods are called on the client's event loop.
    Raises `InvalidRequest` for a name that cannot be one.
    """

    def __init__(
        self, client: LedgerClient, name: str, settings: LogSettings | None = None
    ) -> None:
        self.name = name
        self.settings = settings if settings is not None else LogSettings()
        self._client = client
        self._lists = LogLists(client.store, name, client.rng)
        self._reader = LogReader(client, self._lists, self.settings)

    async def list(self) -> LogList:
        """The log's ledgers, epoch and pins, with all writes that returned before the call.

        Raises `MetadataUnavailable`, `FormatTooNew`.
        """
        return (await self._lists.read_fresh()).list

    async def seen(self) -> HeldList:
        """The list as this session sees it, perhaps a little old: for `lead`.

        Raises as `list`.
        """
        return await self._lists.read()

    async def lead(
        self,
        leader: Leader | None = None,
        after: HeldList | None = None,
        check: Callable[[], None] | None = None,
    ) -> LogWriter:
        """Take the log over: afterwards no older writer gets anything acknowledged any more.

        `leader` was elected: its name is listed with the new epoch. `after` is the list by which
        it was elected: the epoch is raised from that one's alone. Without them the caller always
        leads. `check` is called before each attempt to raise the epoch, and may end this by an
        error. Raises `MetadataUnavailable`, `RecoveryIncomplete`, `NotEnoughBookies` (call again),
        `Deposed` (somebody else has begun a newer epoch meanwhile), `Unavailable` while a backup
        is being restored into the store.
        """
        await check_not_under_way(self._client.store)
        held = after if after is not None else await self._lists.read_fresh()
        raised = raised_from(held.list.epoch, leader, check)
        held = await self._lists.update(held, raised)
        epoch = held.list.epoch
        last_entry = await self._close_last(held.list)
        ledger = await self._create(epoch)
        try:
            change = listing(epoch, ledger.ledger_id, last_entry, self._client.clock.wall_ms())
            held = await self._lists.update(held, change)
        except BaseException:
            ledger.abandon(LedgerClosed(f"ledger {ledger.ledger_id} was never used"))
            raise
        return LogWriter(
            client=self._client,
            lists=self._lists,
            settings=self.settings,
            epoch=epoch,
            ledger=ledger,
            last=held.list.last_before,
            create=lambda: self._create(epoch),
        )

    def read(self, after: Position, last: Position) -> AsyncGenerator[Batch, None]:
        """Every entry after `after` up to `last`, in order, across ledgers.

        While iterating raises `PositionTruncated`, `EntryPastEnd`, `CannotRead`, `Unavailable`.
        """
        return self._reader.read(after, last)

    async def spans(self, after: Position, last: Position) -> Spans:
        """Where every entry after `after` up to `last` lies: a span a ledger, in order.

        For who reads parts of them side by side. Raises as `read`.
        """
        return await self._reader.spans(after, last)

    def tail(self, after: Position) -> AsyncGenerator[Batch, None]:
        """Every entry after `after`, in order, as they are confirmed; waits for more for ever.

        What is unavailable is tried again. Raises `PositionTruncated` when entries after the last
        one handed out are no longer kept, `CannotRead` when no bookie could tell an entry for
        `read_patience_ms`, `InvalidRequest` when the client is closed. Close it
        (`contextlib.aclosing`): it watches the list.
        """
        return self._reader.tail(after)

    async def end(self) -> Position:
        """The newest position that is confirmed now; START if there is none.

        It covers what was announced before the call; what a writer has just acknowledged may be
        announced a moment later. Raises `Unavailable`, `CannotRead`.
        """
        return await self._reader.end()

    async def pin(self, name: str, position: Position, expires_ms: int) -> None:
        """Keep all entries after `position` for `expires_ms` from now on, by the wall clock.

        Pinning again under the name moves and renews the pin. Raises `PositionTruncated` when they
        are not kept any more, `InvalidRequest`, `Overloaded` (too many pins),
        `MetadataUnavailable` (it may be pinned).
        """
        now_ms = await self._client.time.latest_ms()
        earliest_ms = await self._client.time.earliest_ms()
        pin = Pin(name, position, now_ms + expires_ms)

        def change(current: LogList) -> LogList | None:
            # Of a lost reply: the pin stands, and a truncation has respected it since.
            return None if pin in current.pins else pinned(current, pin, earliest_ms, self.settings)

        await self._lists.update(await self._lists.read(), change)

    async def unpin(self, name: str) -> None:
        """Let a pin go; none of that name is a success. Raises `MetadataUnavailable`."""
        await self._lists.update(await self._lists.read(), lambda now: unpinned(now, name))

    async def truncate(self, checkpoint: Position) -> Position:
        """Drop the ledgers that neither `checkpoint`, a pin nor the retention time still needs.

        `checkpoint` is a position that no replica needs to go back behind: what lies up to it is
        in a durable snapshot, or in each replica's durable state. Returns the last entry dropped
        so far. Raises `MetadataUnavailable`.
        """
        now_ms = await self._client.time.earliest_ms()
        seen: dict[int, None] = {}

        def change(current: LogList) -> LogList | None:
            seen.update(dict.fromkeys(current.ledgers))
            return truncated(current, checkpoint, now_ms, self.settings)

        held = await self._lists.update(await self._lists.read(), change)
        await self._delete(ledger for ledger in seen if ledger not in held.list.ledgers)
        return held.list.dropped_through

    async def sweep(self, keep: set[int], epoch: int) -> LedgerIds:
        """Delete ledgers of this log that nothing references any more; returns their ids.

        These are ledgers of epochs before `epoch`, the sweeper's own, and those meant for the log
        that were never listed or are dropped; never what the list or `keep` names. `keep` must name
        every snapshot in use, read after that epoch began. Raises `MetadataUnavailable`.
        """
        return await sweep(self._client, self._lists, keep, epoch)

    async def resign(self, leader: Leader) -> None:
        """Let another replica lead at once, where this one was elected, or may have been.

        Raises `MetadataUnavailable` (it may be done).
        """
        await self._lists.update(await self._lists.read_fresh(), resigned(leader))

    async def remove(self, still: Callable[[], Awaitable[bool]]) -> int:
        """End the log for good; returns the epoch before which all that is left of it is garbage.

        Its list stays, without ledgers: the next log of this name goes on from that epoch.
        `still` reads again whether the log is to be removed; nobody may give its name to another
        log before it is removed. Raises `Deposed` if it is not to be removed, or if a newer epoch
        has begun meanwhile. Raises `Unavailable` (call again) if the metadata store does not answer
        or the last ledger could not be fenced.
        """
        held = await self._lists.read_fresh()
        # In this order: as long as the log is to go, the epoch just read is its own.
        if not await still():
            raise Deposed(f"log {self.name} is not to be removed any more")
        held = await self._lists.update(held, raised_from(held.list.epoch))
        epoch = held.list.epoch
        await self._fence_last(held.list)
        await self._lists.update(held, removing(epoch))
        return epoch

    def custom_metadata(self, purpose: str, epoch: int) -> dict[str, bytes]:
        """What a ledger of this log says of itself, for those made beside the log: snapshots."""
        return marks_of(self.name, purpose, epoch)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` when the list may have changed; returns the way to stop."""
        return self._lists.watch(changed)

    async def _close_last(self, current: LogList) -> int | None:
        """Close the last listed ledger for whoever wrote it; returns its last entry."""
        if not current.listed:
            return None
        ledger = current.listed[-1].ledger
        try:
            reader = await self._client.open_ledger(ledger, recover=True)
        except NoSuchLedger as error:
            check_epoch(await self.list(), current.epoch)
            raise CannotRead(f"log {self.name}: its last ledger, {ledger}, is gone") from error
        await reader.close()
        assert reader.last_add_confirmed >= NO_ENTRY and reader.closed
        return reader.last_add_confirmed

    async def _fence_last(self, current: LogList) -> None:
        """Fence the last listed ledger, which is to be removed: nothing more is acknowledged in it.

        Its writer may be paused, and its bookies may come back. Without a fence they would accept
        what the writer sends then.
        """
        if not current.listed:
            return
        ledger = current.listed[-1].ledger
        try:
            try:
                await (await self._client.open_ledger(ledger, recover=True)).close()
            except RecoveryIncomplete:
                # Bookies are away, full or damaged. A fence is enough, because the end of the
                # ledger does not matter any more.
                await self._client.fence_ledger(ledger)
        except NoSuchLedger:
            # Deleting it meant giving up everything that its writer may still append.
            return
        except MetadataUnavailable:
            raise
        except EngineError as error:
            raise Unavailable(
                f"log {self.name} is not removed yet: {error}. If the bookies of ledger {ledger} "
                "are lost for good, or its metadata cannot be read, delete it: "
                f"herdbook ledger delete --force {ledger}"
            ) from error

    async def _create(self, epoch: int) -> LedgerWriter:
        settings = self.settings
        return await self._client.create_ledger(
            settings.ensemble,
            settings.write_quorum,
            settings.ack_quorum,
            metadata=marks_of(self.name, PURPOSE_LOG, epoch),
        )

    async def _delete(self, ledgers: Iterable[int]) -> None:
        """Delete what was dropped; what is left of it goes with the next sweep."""
        for ledger in ledgers:
            try:
                await self._client.delete_ledger(ledger)
            except NoSuchLedger:
                continue
            except Unavailable:
                return
