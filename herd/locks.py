"""Locks on rows, keys and tables, held by transactions on one event loop.

A key that one transaction holds alone stands in the table as that transaction; only what is shared
or waited for has an object of its own.

Invariants:
- Those who wait are served in their order; nobody passes a waiter, except who holds it already.
- A wait that would close a circle of waits is refused at once: nobody waits for ever.
- Who has ended holds nothing and waits for nothing.
- To begin a wait and to end it costs the same however many wait for the same lock.
- Short writes, which never wait, are one holder together: of each of their rows, and of their
  tables as long as one of them is under way. None begins where somebody waits for the table.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final

from herd.errors import Deadlock, LockTimeout, TransactionEnded

Key = Hashable


class Holder:
    """Who may hold locks. `locks` are its keys, in the order in which it took them."""

    __slots__ = ("locks", "waited_s", "waiting")

    def __init__(self) -> None:
        self.locks: list[Key] = []
        self.waited_s = 0.0
        """How long it waited for locks, until somebody sets it back."""
        self.waiting: _Wait | None = None


class _Wait:
    __slots__ = ("exclusive", "future", "granted", "holder", "lock", "turn")

    def __init__(
        self, holder: Holder, exclusive: bool, lock: "_Lock", future: asyncio.Future[None]
    ) -> None:
        self.holder = holder
        self.exclusive = exclusive
        self.lock = lock
        self.future = future
        self.granted = False
        self.turn = 0
        """Who has a lower one waits for the same lock before this one."""


class _Lock:
    """Several holders, or somebody who waits."""

    __slots__ = ("exclusive", "holders", "queue", "turn")

    def __init__(self) -> None:
        self.holders: set[Holder] = set()
        self.exclusive = False
        self.queue: OrderedDict[_Wait, None] = OrderedDict()
        self.turn = 0

    def enqueue(self, wait: _Wait) -> None:
        """Let somebody wait, who holds it before all that do not."""
        self.turn += 1
        self.queue[wait] = None
        if wait.holder in self.holders:
            wait.turn = -self.turn
            self.queue.move_to_end(wait, last=False)
        else:
            wait.turn = self.turn

    def free_for(self, holder: Holder, exclusive: bool) -> bool:
        """Whether the holders there are let this one in."""
        if not self.holders:
            return True
        if holder in self.holders:
            return not exclusive or self.exclusive or len(self.holders) == 1
        return not exclusive and not self.exclusive


class LockTable:
    """All locks of one tablespace's leader."""

    def __init__(self) -> None:
        self._held: dict[Key, Holder | _Lock] = {}
        self._short = Holder()
        self._short_tables: dict[Key, int] = {}

    def try_lock(self, holder: Holder, key: Key, exclusive: bool = True) -> bool:
        """Take a lock if nobody stands in the way. One that is held already is held once."""
        found = self._held.get(key)
        if found is None:
            if exclusive:
                self._held[key] = holder
            else:
                lock = self._held[key] = _Lock()
                lock.holders.add(holder)
            holder.locks.append(key)
            return True
        if found is holder:
            return True
        if type(found) is not _Lock:
            return False
        # Who holds it may take more of it before those who wait: they wait for its end anyway.
        if (found.queue and holder not in found.holders) or not found.free_for(holder, exclusive):
            return False
        self._take(found, holder, key, exclusive)
        return True

    def try_all(self, holder: Holder, keys: Iterable[Key]) -> bool:
        """Take locks alone, if nobody stands in the way of any; else perhaps some of them."""
        held, locks = self._held, holder.locks
        for key in keys:
            if key not in held:
                held[key] = holder
                locks.append(key)
            elif not self.try_lock(holder, key):
                return False
        return True

    async def lock(self, holder: Holder, key: Key, timeout_ms: int, exclusive: bool = True) -> None:
        """Take a lock, waiting for those who have it. Raises `LockTimeout`, `Deadlock`."""
        if self.try_lock(holder, key, exclusive):
            return
        lock = self._contended(key)
        loop = asyncio.get_running_loop()
        future, began_s = loop.create_future(), loop.time()
        wait = _Wait(holder, exclusive, lock, future)
        lock.enqueue(wait)
        holder.waiting = wait
        try:
            if _circle(wait):
                raise Deadlock("transactions wait for each other's locks", hint="begin it again")
            async with asyncio.timeout(timeout_ms / 1000):
                await future
        except TimeoutError:
            if not wait.granted:
                raise LockTimeout(
                    f"another transaction has kept a lock for {timeout_ms} ms", hint="try it again"
                ) from None
        finally:
            holder.waited_s += loop.time() - began_s
            if holder.waiting is wait:
                holder.waiting = None
            lock.queue.pop(wait, None)
            self._serve(lock, key)

    def release(self, holder: Holder) -> None:
        """Let go of everything that a holder has; one that waits hears that it is over."""
        wait = holder.waiting
        if wait is not None:
            holder.waiting = None
            if not wait.future.done():
                wait.future.set_exception(
                    TransactionEnded("it was ended while it waited for a lock")
                )
        held = self._held
        for key in holder.locks:
            if held.get(key) is holder:
                del held[key]
            else:
                self._let_go(holder, key)
        holder.locks = []

    def try_short(self, table: Key, row: Key) -> bool:
        """Lock a row, and its table shared, for a short write, if nobody has or wants either."""
        held = self._held
        if row in held:
            return False
        under_way = self._short_tables.get(table, 0)
        if under_way:
            found = held[table]
            assert type(found) is _Lock
            if found.queue:
                return False
        elif not self.try_lock(self._short, table, exclusive=False):
            return False
        else:
            self._short.locks.clear()
        self._short_tables[table] = under_way + 1
        held[row] = self._short
        return True

    def release_short(self, table: Key, row: Key) -> None:
        """The end of what `try_short` began."""
        if self._held.get(row) is self._short:
            del self._held[row]
        else:
            self._let_go(self._short, row)
        under_way = self._short_tables[table] - 1
        if under_way:
            self._short_tables[table] = under_way
        else:
            del self._short_tables[table]
            self._let_go(self._short, table)

    def held_by_others(self, holder: Holder, key: Key) -> bool:
        """Whether somebody else has this lock, shared or not."""
        found = self._held.get(key)
        if type(found) is _Lock:
            return bool(found.holders - {holder})
        return found is not None and found is not holder

    def __len__(self) -> int:
        return len(self._held)

    def _let_go(self, holder: Holder, key: Key) -> None:
        found = self._held.get(key)
        if found is holder:
            del self._held[key]
        elif type(found) is _Lock and holder in found.holders:
            found.holders.remove(holder)
            found.exclusive = False
            self._serve(found, key)

    def _contended(self, key: Key) -> _Lock:
        found = self._held[key]
        if type(found) is _Lock:
            return found
        assert isinstance(found, Holder)
        lock = self._held[key] = _Lock()
        lock.holders.add(found)
        lock.exclusive = True
        return lock

    def _take(self, lock: _Lock, holder: Holder, key: Key, exclusive: bool) -> None:
        if holder not in lock.holders:
            lock.holders.add(holder)
            holder.locks.append(key)
        lock.exclusive = lock.exclusive or exclusive

    def _serve(self, lock: _Lock, key: Key) -> None:
        while lock.queue:
            wait = next(iter(lock.queue))
            if not lock.free_for(wait.holder, wait.exclusive):
                return
            del lock.queue[wait]
            if not wait.future.done():
                self._take(lock, wait.holder, key, wait.exclusive)
                wait.granted = True
                # Who has been served waits for nobody, though its turn to run has yet to come.
                wait.holder.waiting = None
                wait.future.set_result(None)
        if not lock.holders and self._held.get(key) is lock:
            del self._held[key]


def _circle(start: _Wait) -> bool:
    """Whether somebody that this one waits for waits for it.

    Who waits waits for the holders of its lock, and for those who wait for that lock before it. The
    latter wait for nothing but the same, so that only holders lead on to other locks.
    """
    seen = {start.lock}
    ahead = [start]
    while ahead:
        wait = ahead.pop()
        lock = wait.lock
        if wait is not start:
            if start.holder in lock.holders:
                return True
            if lock is start.lock and start.turn < wait.turn:
                return True
            if lock in seen:
                continue
            seen.add(lock)
        for holder in lock.holders:
            other = holder.waiting
            if other is not None and other is not start and not other.future.done():
                ahead.append(other)
    return False


SCHEMA: Final = "schema"
"""The name to lock for who defines anything: from before it looks until that is applied."""
