"""Why bookies could not be reached, last time: what errors about too few of them shall say.

Invariants:
- A bookie that was reached since has no trouble.
- The kind of a trouble is kept: a refused secret never becomes mere silence.
"""

from collections.abc import Collection, Iterable

from engine.errors import AccessRefused, AppendFailed, BookieUnavailable


class Troubles:
    """The newest trouble with each bookie that one client has met."""

    def __init__(self) -> None:
        self._newest: dict[str, BookieUnavailable] = {}

    def note(self, bookie_id: str, error: BookieUnavailable) -> None:
        """A bookie could not be reached."""
        self._newest[bookie_id] = error

    def over(self, bookie_id: str) -> None:
        """A bookie was reached."""
        if self._newest:
            self._newest.pop(bookie_id, None)

    def of(self, bookie_ids: Iterable[str]) -> BookieUnavailable | None:
        """The trouble to name as the cause: a refusal rather than anything that may pass."""
        found = [self._newest[name] for name in bookie_ids if name in self._newest]
        refusals = [error for error in found if isinstance(error, AccessRefused)]
        return next(iter(refusals or found), None)

    def refused(self, bookie_id: str) -> bool:
        """Whether the bookie, or this client, did not accept the other's proof."""
        return isinstance(self._newest.get(bookie_id), AccessRefused)

    @property
    def bookies(self) -> list[str]:
        """The ids of all bookies with a trouble, in order."""
        return sorted(self._newest)

    def tell(self, bookie_ids: Iterable[str]) -> str:
        """The troubles with some bookies as the end of a sentence, "" if there are none."""
        said: dict[str, list[str]] = {}
        for name in bookie_ids:
            error = self._newest.get(name)
            if error is not None:
                said.setdefault(f"{type(error).__name__}: {error}", []).append(name)
        parts = [f"{', '.join(names)}: {why}" for why, names in said.items()]
        return f" ({'; '.join(parts)})" if parts else ""

    def too_few(self, ledger_id: int, bookie_ids: Collection[str]) -> AppendFailed:
        """What to raise where too few of some bookies are left for a ledger, with its cause."""
        words = self.tell(bookie_ids)
        error = AppendFailed(f"ledger {ledger_id}: too few bookies are left{words}")
        error.__cause__ = self.of(bookie_ids)
        return error
