"""How long entries may wait while bookies fail one after the other.

Invariants:
- Tries that bring back only bookies which failed since something was confirmed share one time:
  a bookie that comes and fails, again and again, does not keep an append waiting for ever.
- Whoever was not tried yet gets the whole time, and so do all when one fails that had not.
"""

from collections.abc import Iterable

from engine.ports.clock import Clock


class Patience:
    """That of one ledger's writer, or of its recovery."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._failed: set[str] = set()
        self._until_s: float | None = None
        self.begun = False
        """Whether anything failed, or is to be replaced, since something was confirmed."""

    def begin(self, *, waiting: bool) -> None:
        """Failed bookies are to be replaced; whether entries wait for that."""
        self.begun = True
        if self._until_s is None or not waiting:
            self._until_s = self._clock.monotonic() + self._timeout_s

    def failed(self, bookie_id: str) -> None:
        """A bookie failed; its first failure gives the others the whole time."""
        self.begun = True
        if bookie_id not in self._failed:
            self._failed.add(bookie_id)
            self._until_s = None

    def confirmed(self) -> None:
        """Something was confirmed: it all begins anew."""
        self._failed.clear()
        self._until_s = None
        self.begun = False

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self._until_s is not None and self._clock.monotonic() > self._until_s

    def over_with(self, substitutes: Iterable[str]) -> bool:
        """Whether it is up also if these come; it begins anew with one that was not tried yet."""
        if not self._failed.issuperset(substitutes):
            self.begin(waiting=False)
        return self.over
