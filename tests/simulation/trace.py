"""What happened in a run, as a hash, and in words for whoever replays it.

Invariants:
- Every event goes into the hash with its virtual time; equal hashes mean equal runs.
- Events are plain values: nothing in them depends on an address or on the order of a hash table.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.simulation.loop import SimLoop

OF_MESSAGES: Final = frozenset(
    f"{what} {of}"
    for what in ("lost", "repeated")
    for of in ("request", "reply", "call", "answer", "metadata call", "append", "proposal")
)
"""What befalls single messages. Every other fault is a strike: a crash, a partition, a pause."""


class Trace:
    """Events of one run. `show` is given each one in words."""

    def __init__(self, loop: SimLoop, show: Callable[[str], None] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._loop = loop
        self._show = show
        self._hash = hashlib.blake2b(digest_size=8)

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self._loop.now

    def event(self, kind: str, *details: object) -> None:
        """Note that something happened now."""
        self.counts[kind] += 1
        line = f"{self._loop.now:.6f} {kind} {' '.join(map(str, details))}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def fault(self, kind: str, *details: object) -> None:
        """Note something that the world did to the system under test."""
        self.counts["faults"] += 1
        if kind not in OF_MESSAGES:
            self.counts["strikes"] += 1
        self.event(kind, *details)

    def digest(self) -> str:
        """The hash of all events so far."""
        return self._hash.hexdigest()
