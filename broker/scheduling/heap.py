"""A heap whose keys may change: raised lazily, lowered at once.

Invariants:
- An item has one valid entry at most. Its key is never above the item's present one, so the first
  valid entry whose key is the present one is the lowest of all.
- Entries that are not valid any more are at most as many as the valid ones, and a few.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

_SPARE_ENTRIES: Final = 16
Item = TypeVar("Item")
Key = Any


class LazyHeap(Generic[Item]):
    """Items in the order of their keys.

    `key_of` tells an item's present key; None: it has none at the moment and leaves the heap.
    """

    __slots__ = ("_entries", "_heap", "_key_of", "_number")

    def __init__(self, key_of: Callable[[Item], Key]) -> None:
        self._key_of = key_of
        self._heap: list[tuple[Key, int, Item]] = []
        self._entries: dict[Item, Key] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    def offer(self, item: Item, key: Key) -> None:
        """Let an item take part, or come forward. A key that is too low does no harm."""
        entries = self._entries
        known = entries.get(item)
        if known is not None and known <= key:
            return
        entries[item] = key
        self._number += 1
        heap = self._heap
        if len(heap) > 2 * len(entries) + _SPARE_ENTRIES:
            self._heap = heap = [entry for entry in heap if entries.get(entry[2]) is entry[0]]
            heapify(heap)
        heappush(heap, (key, self._number, item))

    def drop(self, item: Item) -> None:
        """Let an item take no part. It may take none already."""
        self._entries.pop(item, None)

    def first_key(self) -> Key:
        """The lowest key; None: there is no item. `settled` is whose it is then."""
        heap, entries, key_of = self._heap, self._entries, self._key_of
        while heap:
            key, number, item = heap[0]
            # Of the same key an entry and the item have the same object.
            if entries.get(item) is not key:
                heappop(heap)
                continue
            present = key_of(item)
            if present == key:
                return key
            if present is None:
                del entries[item]
                heappop(heap)
            else:
                entries[item] = present
                heapreplace(heap, (present, number, item))
        return None

    def bound(self) -> Key:
        """A key that none is below. There is an item."""
        return self._heap[0][0]

    def settled(self) -> Item:
        """Whose key was found last; nothing has changed since."""
        return self._heap[0][2]

    def first(self) -> Item | None:
        """The item with the lowest key; `bound` is that key then."""
        return None if self.first_key() is None else self._heap[0][2]
