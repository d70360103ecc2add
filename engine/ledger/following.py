"""Following the LAC of a ledger that somebody else writes.

Invariants:
- The LAC of one reader only grows.
- Polls run only while somebody waits. The metadata is read again whenever it may have changed, when
  a bookie had nothing new for the length of a poll, and when its reply is of another kind. A lost
  notice therefore delays a follower but never blinds it.
- If a bookie is unreachable, or says at once that the ledger is fenced, its polls make a follower
  read the metadata only every few seconds: hundreds of followers must not burden the store. If such
  a read fails, the next poll tries it again.
- Nobody waits on a client that was closed: nothing would ever come.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

from engine.errors import BookieUnavailable, InvalidRequest, MetadataUnavailable, Unavailable
from engine.ledger.context import LedgerContext
from engine.ledger.quorum import covered
from engine.metadata.ledgers import Held, LedgerMetadata
from engine.run import NO_ENTRY
from engine.transport.contract import LacReply, Status

PAUSE_MS_MAX: Final = 1_000
"""Between two questions to a bookie that does not answer."""
READ_AGAIN_S: Final = 5.0
"""How long a follower relies on notices while a bookie is unreachable or the ledger fenced."""
IDLE_POLL_MS: Final = 40_000
"""How long a bookie may wait with its answer if there was nothing new for long."""


class LacFollower:
    """Knows how far a ledger may be read, and waits until it is further."""

    def __init__(self, context: LedgerContext, held: Held) -> None:
        self._context = context
        self._held = held
        self.lac = NO_ENTRY
        self._changed = asyncio.Event()
        self._pauses_ms: dict[str, int] = {}
        self._statuses: dict[str, Status] = {}
        """How each bookie replied last."""
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[Literal[True]] | None = None
        self._waiting = 0
        self._unwatch: Callable[[], None] | None = None
        self._failure: Exception | None = None
        self._read_s = 0.0
        """When the metadata was last read, by the monotonic clock; `-inf` if that failed."""
        self._changed_again = False
        """Whether the metadata may have changed since the read that is under way began."""
        self._adopt(held)

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata known."""
        return self._held.metadata

    async def read_now(self, at_least: int = NO_ENTRY) -> int:
        """Ask the ensemble for its LAC; what it returns covers all that was announced before.

        Waits until the LAC is at least `at_least`, for as long as a read may take. If the result is
        lower, all bookies have answered.

        Raises `Unavailable` when too few bookies answer, and what reading the metadata raises.
        """
        await self._ask_ensemble()
        if self.lac < at_least:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._context.settings.read_timeout_ms / 1000):
                    await self.wait_above(at_least - 1)
        if self.lac < at_least and not self.metadata.closed:
            # A bookie that has not answered may know a higher LAC.
            await self._ask_ensemble(each=True)
        return self.lac

    async def _ask_ensemble(self, *, each: bool = False) -> None:
        """Ask the ensemble that the writer is still on afterwards; `each` as in `_ask_all`."""
        await self.refresh()
        while not self.metadata.closed:
            asked = self.metadata.fragments[-1]
            await self._ask_all(each=each)
            await self.refresh()
            if self.metadata.fragments[-1] == asked:
                return

    async def _ask_all(self, *, each: bool = False) -> None:
        """Ask until each ack quorum has an answer; with `each`, until all bookies have answered."""
        ensemble = self.metadata.fragments[-1].ensemble
        quorums = self._context.quorums(self.metadata)
        tasks = {
            asyncio.ensure_future(self._ask(name, NO_ENTRY - 1, 0)): index
            for index, name in enumerate(ensemble)
        }
        answered: set[int] = set()
        try:
            async with asyncio.timeout(self._context.settings.read_timeout_ms / 1000):
                pending = set(tasks)
                while pending and (each or not covered(quorums, answered)):
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in [task for task in tasks if task in done]:
                        if self._learn(task.result()):
                            answered.add(tasks[task])
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
        if len(answered) < len(tasks) if each else not covered(quorums, answered):
            troubles = self._context.troubles
            raise Unavailable(
                f"ledger {self.metadata.ledger_id}: too few bookies of {', '.join(ensemble)} "
                f"told how far it may be read{troubles.tell(ensemble)}"
            ) from troubles.of(ensemble)

    async def wait_above(self, entry_id: int) -> None:
        """Wait until the LAC is over `entry_id` or the ledger is closed.

        Raises `NoSuchLedger` when the ledger has been deleted meanwhile, `InvalidRequest` when the
        client was closed.
        """
        if self._unwatch is None:
            ledgers = self._context.ledgers
            self._unwatch = ledgers.watch(self.metadata.ledger_id, self._refresh)
            ending = self._ending = asyncio.create_task(self._context.closed.wait())
            ending.add_done_callback(lambda _: self._changed.set())
            self._refresh()
        self._waiting += 1
        try:
            while self.lac <= entry_id and not self.metadata.closed:
                if self._failure is not None:
                    raise self._failure
                if self._context.closed.is_set():
                    raise InvalidRequest(
                        f"ledger {self.metadata.ledger_id}: its client was closed: open it again"
                    )
                self._changed.clear()
                self._start_polls()
                await self._changed.wait()
        finally:
            self._waiting -= 1

    async def refresh(self) -> None:
        """Read the metadata anew, past all writes that returned before, or raise what it raises."""
        await self._context.ledgers.store.sync()
        self._adopt(await self._context.ledgers.read(self.metadata.ledger_id))

    async def close(self) -> None:
        """Stop polling and watching."""
        if self._unwatch is not None:
            self._unwatch()
        single = [task for task in (self._refreshing, self._ending) if task is not None]
        tasks: list[asyncio.Future[Any]] = [*self._polls.values(), *single]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_polls(self) -> None:
        for name in self.metadata.fragments[-1].ensemble:
            if name not in self._polls:
                self._polls[name] = asyncio.ensure_future(self._poll(name))

    async def _poll(self, bookie_id: str) -> None:
        settings = self._context.settings
        poll_ms = settings.long_poll_ms
        try:
            while self._waiting and not self.metadata.closed:
                if bookie_id not in self.metadata.fragments[-1].ensemble:
                    return
                known = self.lac
                reply = await self._ask(bookie_id, known, poll_ms)
                told = self._learn(reply)
                another = reply.status is not self._statuses.get(bookie_id)
                self._statuses[bookie_id] = reply.status
                if self.lac > known and told:
                    self._pauses_ms.pop(bookie_id, None)
                    poll_ms = settings.long_poll_ms
                    continue
                if told and reply.status is not Status.FENCED:
                    # The poll ran its full time. A ledger that nobody writes to is polled less and
                    # less often: a bookie answers at once when there is something.
                    self._pauses_ms.pop(bookie_id, None)
                    poll_ms, due = min(2 * poll_ms, IDLE_POLL_MS), True
                else:
                    # It answers at once, or is away: the others, or the metadata, tell what is new.
                    pause_ms = self._pauses_ms.get(bookie_id, settings.retry_pause_ms)
                    self._pauses_ms[bookie_id] = min(2 * pause_ms, PAUSE_MS_MAX)
                    poll_ms = settings.long_poll_ms
                    due = another or self._context.clock.monotonic() - self._read_s >= READ_AGAIN_S
                if due:
                    self._refresh()
                pause_ms = self._pauses_ms.get(bookie_id, settings.retry_pause_ms)
                await asyncio.sleep(pause_ms / 1000)
        finally:
            self._polls.pop(bookie_id, None)

    async def _ask(self, bookie_id: str, above: int, timeout_ms: int) -> LacReply:
        patience_s = (timeout_ms + self._context.settings.read_timeout_ms) / 1000
        try:
            async with asyncio.timeout(patience_s):
                bookie = await self._context.connect(bookie_id)
                reply = await bookie.wait_lac(self.metadata.ledger_id, above, timeout_ms)
        except (BookieUnavailable, TimeoutError):
            return LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        if reply.bookie_id != bookie_id:
            return LacReply(Status.UNAVAILABLE, NO_ENTRY, bookie_id, 0)
        return reply

    def _learn(self, reply: LacReply) -> bool:
        """Take a bookie's LAC; tell whether it was an answer at all."""
        if reply.status not in (Status.OK, Status.FENCED, Status.NO_SUCH_LEDGER):
            return False
        if reply.lac > self.lac and not self.metadata.closed:
            self.lac = reply.lac
            self._changed.set()
        return True

    def _refresh(self) -> None:
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._read_metadata())
        else:
            self._changed_again = True

    async def _read_metadata(self) -> None:
        try:
            self._changed_again = True
            while self._changed_again:
                self._changed_again = False
                self._adopt(await self._context.ledgers.read(self.metadata.ledger_id))
                # At once: the next read may fail, and polls of a closed ledger end.
                self._changed.set()
        except MetadataUnavailable:
            # The next poll tries again.
            self._read_s = -math.inf
        except Exception as error:
            self._failure = error
            self._changed.set()
        finally:
            self._refreshing = None

    def _adopt(self, held: Held) -> None:
        self._read_s = self._context.clock.monotonic()
        if held.version >= self._held.version:
            self._held = held
        if self._held.metadata.closed:
            last = self._held.metadata.last_entry
            assert last is not None
            assert last >= self.lac, "a ledger was closed below its LAC"
            self.lac = last
