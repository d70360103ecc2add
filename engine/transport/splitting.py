"""Appends that are too big for one message: several messages, one reply.

Invariants:
- Every run is in exactly one part, in order, and no part is empty.
- The whole is answered once, with OK only if every part was.
"""

from collections.abc import Callable, Sequence
from typing import Final

from engine.run import Run
from engine.transport.contract import AppendReply, Status

ROW_BYTES: Final = 64
"""What a run takes beside its table and bodies, at most."""


class JoinedReply:
    """Makes one reply of the replies to the parts of an append."""

    def __init__(
        self, reply: Callable[[AppendReply], None], parts: int, first: int, last: int
    ) -> None:
        self._reply = reply
        self._left = parts
        self._range = (first, last)
        self._bad: AppendReply | None = None

    def add(self, part: AppendReply) -> None:
        """One part's reply; the last one answers the whole, with the first failure if any."""
        assert self._left > 0
        self._left -= 1
        if part.status is not Status.OK and self._bad is None:
            self._bad = part
        if self._left == 0:
            said = self._bad or part
            first, last = self._range
            self._reply(
                AppendReply(said.status, part.ledger_id, first, last, part.bookie_id, said.boot)
            )


def split(runs: Sequence[Run], bytes_max: int) -> Sequence[Sequence[Run]]:
    """Cut runs into parts of at most `bytes_max` each, or of one run; nearly always it is one."""
    if sum(run.size_bytes for run in runs) + ROW_BYTES * len(runs) <= bytes_max:
        return (runs,)
    parts: list[Sequence[Run]] = []
    start = size_bytes = 0
    for position, run in enumerate(runs):
        run_bytes = run.size_bytes + ROW_BYTES
        if position > start and size_bytes + run_bytes > bytes_max:
            parts.append(runs[start:position])
            start, size_bytes = position, 0
        size_bytes += run_bytes
    parts.append(runs[start:])
    return parts
