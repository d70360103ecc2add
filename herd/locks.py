"""Locks on rows, keys and tables, held by transactions on one event loop.

A key that one transaction holds alone stands in the table as that transaction; only what is shared
or waited for has an object of its own.

Invariants:
- Those who wait are served in their order; nobody passes a waiter, except who holds it already.
- A wait that would close a circle of waits is refused at once: nobody waits for ever.
- Who has ended holds nothing and waits for nothing.
- Short writes, which never wait, are one holder together: of each of their rows, and of their
  tables as long as one of them is under way. None begins where somebody waits for the table.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
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
    __slots__ = ("exclusive", "future", "granted", "holder", "lock")

    def __init__(
        self, holder: Holder, exclusive: bool, lock: "_Lock", future: asyncio.Future[None]
    ) -> None:
        self.holder = holder
        self.exclusive = exclusive
        self.lock = lock
        self.future = future
        self.granted = False


class _Lock:
    """Several holders, or somebody who waits."""

    __slots__ = ("exclusive", "holders", "queue")

    def __init__(self) -> None:
        self.holders: set[Holder] = set()
        self.exclusive = False
        self.queue: deque[_Wait] = deque()

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
        if holder in lock.holders:
            lock.queue.appendleft(wait)
        else:
            lock.queue.append(wait)
        holder.waiting = wait
        try:
            if self._circle(holder):
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
            if wait in lock.queue:
                lock.queue.remove(wait)
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
            wait = lock.queue[0]
            if not lock.free_for(wait.holder, wait.exclusive):
                return
            lock.queue.popleft()
            if not wait.future.done():
                self._take(lock, wait.holder, key, wait.exclusive)
                wait.granted = True
                # Who has been served waits for nobody, though its turn to run has yet to come.
                wait.holder.waiting = None
                wait.future.set_result(None)
        if not lock.holders and self._held.get(key) is lock:
            del self._held[key]

    def _circle(self, start: Holder) -> bool:
        """Whether somebody that this one waits for waits for it."""
        seen: set[Holder] = set()
        ahead = list(_waited_for(start))
        while ahead:
            holder = ahead.pop()
            if holder is start:
                return True
            if holder not in seen:
                seen.add(holder)
                ahead += _waited_for(holder)
        return False


def _waited_for(holder: Holder) -> Iterator[Holder]:
    """Who has the lock that it waits for, and who waits for it before."""
    wait = holder.waiting
    if wait is None or wait.future.done():
        return
    for other in wait.lock.holders:
        if other is not holder:
            yield other
    for earlier in wait.lock.queue:
        if earlier is wait:
            return
        yield earlier.holder


SCHEMA: Final = "schema"
"""The name to lock for who defines anything: from before it looks until that is applied."""
