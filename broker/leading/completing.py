"""Logs the ends of attempts: those reported while a command is under way share the next one.

Invariants:
- A worker's message is acknowledged only when everything in it is applied.
- The reports of a worker keep their order.
- While a command is under way, the next one is gathered, unless it is full: it could not become
  durable any sooner, and a small command costs as much as a large one.
- The number of ends and of bytes in a command is bounded.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.batching import BATCH_BYTES_MAX
from broker.commands import (
    ITEMS_MAX,
    UNKNOWN_COMMAND,
    Completion,
    Ended,
    Finish,
    Outcome,
)
from broker.connection import Acked, Done
from broker.connection import Completion as Told
from broker.connection import Ended as How
from broker.errors import BrokerError
from broker.leading.link import LocalLink
from broker.leading.proposing import Proposing
from broker.spec import OBJECT_NAME_MAX
from broker.task import ERROR_LENGTH_MAX, PAYLOAD_BYTES_MAX
from engine.ports.metrics import Counter

_OUTCOMES: Final = {
    How.FINISHED: Outcome.FINISHED,
    How.FAILED: Outcome.FAILED,
    How.HANDED_BACK: Outcome.HANDED_BACK,
    How.ENDED_FOR_ANOTHER: Outcome.INTERRUPTED,
    How.INTERRUPTED: Outcome.INTERRUPTED,
}
_FINISHED: Final = Outcome.FINISHED
_logger = logging.getLogger(__name__)


class Completing:
    """Gathers the ends of attempts, and acknowledges them."""

    def __init__(self, proposing: Proposing, drawn: Callable[[], int], completed: Counter) -> None:
        self._proposing = proposing
        self._drawn = drawn
        self._completed = completed
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Completion] = []
        self._count = 0
        self._bytes = 0
        self._acks: list[tuple[LocalLink, int]] = []
        self._under_way = 0

    def take(self, link: LocalLink, done: Done) -> None:
        """Log reported ends, and acknowledge them over the link once they are durable."""
        if not (self._gathered or self._acks or self._under_way):
            self._loop.call_soon(self.flush)
        items: list[Ended] = []
        for told in done.completions:
            size_bytes = len(told.result) + len(told.error)
            if self._count >= ITEMS_MAX or self._bytes + size_bytes > BATCH_BYTES_MAX:
                self._add(link, done.session, items)
                items = []
                self.flush()
            items.append(_ended(told))
            self._count += 1
            self._bytes += size_bytes
        self._add(link, done.session, items)
        self._acks.append((link, done.sequence))

    def _add(self, link: LocalLink, session: int, items: list[Ended]) -> None:
        if items:
            self._gathered.append(Completion(link.worker_id, session, items))

    def flush(self) -> None:
        """Log everything that was reported so far."""
        gathered, self._gathered = self._gathered, []
        acks, self._acks = self._acks, []
        count, self._count = self._count, 0
        self._bytes = 0

        def heard(told: bytes | BrokerError) -> None:
            self._under_way -= 1
            if (self._gathered or self._acks) and not self._under_way:
                self._loop.call_soon(self.flush)
            # Without an acknowledgement, the worker reports it again to the next leader.
            if told == UNKNOWN_COMMAND:
                _logger.error("the ends of %d attempts cannot be logged", count)
            elif not isinstance(told, BrokerError):
                self._completed.add(count)
                for link, sequence in acks:
                    link.say(Acked(sequence))

        self._under_way += 1
        if gathered:
            now_ms = self._proposing.time.now_ms()
            self._proposing.send(Finish(gathered, now_ms, self._drawn()), heard)
        else:
            heard(b"")


def _ended(told: Told) -> Ended:
    """The same in the format of the log. A result that is too long becomes a failure."""
    if told.ended is How.FINISHED and len(told.result) <= PAYLOAD_BYTES_MAX:
        if told.result_object:
            where = told.result_object[:OBJECT_NAME_MAX]
            return Ended(told.id, told.attempt, _FINISHED, result_object=where)
        return Ended(told.id, told.attempt, _FINISHED, told.result)
    outcome, result, error = _OUTCOMES[told.ended], told.result, told.error
    if len(result) > PAYLOAD_BYTES_MAX:
        outcome, result = Outcome.FAILED, b""
        error = f"its result has {len(told.result)} bytes (limit {PAYLOAD_BYTES_MAX})"
    return Ended(
        told.id,
        told.attempt,
        outcome,
        result,
        error[:ERROR_LENGTH_MAX],
        -1 if told.retry_after_ms is None else max(0, told.retry_after_ms),
        told.no_retry,
    )
