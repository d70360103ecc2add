"""Rows that were written into the storage a short while ago.

Whoever changes a row is likely to change it again soon; what is kept here need not be read from the
storage then.

Invariants:
- What is here is what the storage has: whatever is written there passes through here first, or
  everything here is forgotten.
- At most `bytes_max` bytes are kept, in two generations: the older one goes as a whole.
"""


class Recent:
    """The newest changes that have been written; None stands for a row that was removed."""

    __slots__ = ("_bytes_max", "_size_bytes", "layers")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self.layers: tuple[dict[bytes, bytes | None], ...] = ({}, {})
        """The younger generation first. Other threads may read them."""

    def take(self, changes: dict[bytes, bytes | None], size_bytes: int) -> None:
        """These changes have been written, the newest of all."""
        share = self._bytes_max // 2
        if size_bytes > share:
            self.clear()
            return
        if self._size_bytes + size_bytes > share:
            self.layers = ({}, self.layers[0])
            self._size_bytes = 0
        self.layers[0].update(changes)
        self._size_bytes += size_bytes

    def clear(self) -> None:
        """The storage was changed by other ways."""
        self.layers = ({}, {})
        self._size_bytes = 0
