"""Queues of waiting task ids, in as little memory as they need.

Invariants:
- Ids leave a queue in the order in which they came; one that is put back goes to the front.
- `len(ring)` counts what waits: what was removed is no part of it, though it may still lie there.
- Neither the first nor the last id that lies in a ring is a removed one, and removed ones in
  between are few: each removal sweeps a part of the ring. So no pop passes over many of them.
- The garbage collector sees one object for a thousand ids.
- An id that comes back while it still lies there as a removed one has its old place again.
"""

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

CHUNK_IDS: Final = 1_024
REMOVALS_A_SWEEP: Final = 32
"""After so many removals one chunk is swept: at most a thirty-second of a ring is removed ids."""


_NOTHING: Final[set[int]] = set()
"""Of rings from which nothing was removed: most of them are small and many."""


class QueueKey(NamedTuple):
    """What tells queues apart. A `group` (and `resources`) only where they were fixed at submit."""

    tenant: str
    type: str
    priority: int = 0
    group: int = 0
    resources: tuple[str, ...] = ()


class _Chunk:
    """Consecutive ids, and since when each has waited. `start`: what lies before it is gone."""

    __slots__ = ("ids", "since_ms", "start")

    def __init__(self, ids: Sequence[int] = (), since_ms: Sequence[int] = ()) -> None:
        self.ids = array("Q", ids)
        self.since_ms = array("q", since_ms)
        self.start = 0


class Ring:
    """One queue's ids, first in first out."""

    __slots__ = ("_chunks", "_count", "_place", "_removals", "_removed")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._removed: set[int] = _NOTHING
        self._count = 0
        self._removals = 0
        self._place = 0

    def __len__(self) -> int:
        return self._count

    def push(self, task_id: int, since_ms: int) -> None:
        """Put an id at the end."""
        self._count += 1
        if task_id in self._removed:
            self._removed.discard(task_id)
            return
        if not self._chunks or len(self._chunks[-1].ids) >= CHUNK_IDS:
            self._chunks.append(_Chunk())
        last = self._chunks[-1]
        last.ids.append(task_id)
        last.since_ms.append(since_ms)

    def push_many(self, ids: Sequence[int], since_ms: int) -> None:
        """Put ids at the end, all of which wait since the same moment."""
        if not self._removed.isdisjoint(ids):
            for task_id in ids:
                self.push(task_id, since_ms)
            return
        done = 0
        while done < len(ids):
            if not self._chunks or len(self._chunks[-1].ids) >= CHUNK_IDS:
                self._chunks.append(_Chunk())
            last = self._chunks[-1]
            part = ids[done : done + CHUNK_IDS - len(last.ids)]
            last.ids.extend(part)
            last.since_ms.extend([since_ms] * len(part))
            done += len(part)
        self._count += len(ids)

    def push_front(self, task_id: int, since_ms: int) -> None:
        """Put an id back where it came from."""
        first = self._chunks[0] if self._chunks else None
        if first is not None and first.start:
            first.start -= 1
            first.ids[first.start] = task_id
            first.since_ms[first.start] = since_ms
        else:
            self._chunks.insert(0, _Chunk((task_id,), (since_ms,)))
        self._count += 1

    @property
    def head_id(self) -> int:
        """The first id. There is one."""
        first = self._chunks[0]
        return first.ids[first.start]

    @property
    def head_since_ms(self) -> int:
        """Since when the first id waits. There is one."""
        first = self._chunks[0]
        return first.since_ms[first.start]

    def pop(self) -> int:
        """Take the first id. There is one."""
        assert self._count > 0
        first = self._chunks[0]
        task_id = first.ids[first.start]
        self._drop_first()
        self._count -= 1
        if self._removed:
            assert task_id not in self._removed
            self._trim()
        return task_id

    def pop_many(self, count: int) -> list[tuple[int, int]]:
        """Take so many of the first ids, each with since when it has waited. There are so many."""
        assert 0 <= count <= self._count
        taken: list[tuple[int, int]] = []
        while len(taken) < count:
            if self._removed:
                since_ms = self.head_since_ms
                taken.append((self.pop(), since_ms))
                continue
            first = self._chunks[0]
            start, end = first.start, min(first.start + count - len(taken), len(first.ids))
            taken += zip(first.ids[start:end], first.since_ms[start:end], strict=True)
            self._count -= end - start
            first.start = end
            if end == len(first.ids):
                del self._chunks[0]
        return taken

    def remove(self, task_id: int) -> None:
        """Take an id out that lies in it, wherever it does."""
        assert self._count > 0 and task_id not in self._removed
        if self._removed is _NOTHING:
            self._removed = set()
        self._removed.add(task_id)
        self._count -= 1
        self._removals += 1
        if self._removals >= REMOVALS_A_SWEEP:
            self._removals = 0
            self._sweep()
        self._trim()

    @property
    def lying(self) -> int:
        """How many ids lie in it, removed ones too."""
        return self._count + len(self._removed)

    def parts(self) -> list[object]:
        """All objects that it is made of."""
        chunks = list(self._chunks)
        arrays = [one for chunk in chunks for one in (chunk.ids, chunk.since_ms)]
        return [self, self._chunks, self._removed, *chunks, *arrays]

    def ids(self) -> list[int]:
        """All that wait, in their order."""
        return [
            task_id
            for chunk in self._chunks
            for task_id in chunk.ids[chunk.start :]
            if task_id not in self._removed
        ]

    def _drop_first(self) -> None:
        first = self._chunks[0]
        first.start += 1
        if first.start == len(first.ids):
            del self._chunks[0]

    def _trim(self) -> None:
        removed = self._removed
        if not removed:
            return
        while self._chunks and (task_id := self._chunks[0].ids[self._chunks[0].start]) in removed:
            removed.discard(task_id)
            self._drop_first()
        while self._chunks and self._chunks[-1].ids[-1] in removed:
            last = self._chunks[-1]
            removed.discard(last.ids.pop())
            last.since_ms.pop()
            if last.start == len(last.ids):
                self._chunks.pop()

    def _sweep(self) -> None:
        """Look through the next chunk, round and round."""
        self._place = (self._place + 1) % len(self._chunks)
        chunk = self._chunks[self._place]
        removed = self._removed
        lying = chunk.ids[chunk.start :]
        if removed.isdisjoint(lying):
            return
        kept = [
            (task_id, since)
            for task_id, since in zip(lying, chunk.since_ms[chunk.start :], strict=True)
            if task_id not in removed
        ]
        removed.difference_update(lying)
        if kept:
            ids, since_ms = zip(*kept, strict=True)
            self._chunks[self._place] = _Chunk(ids, since_ms)
        else:
            del self._chunks[self._place]
