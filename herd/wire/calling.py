"""Asking whoever serves a tablespace at the moment, again if that may help.

Invariants:
- A call that may have been done is asked again only where doing it twice is doing it once.
- Nobody asks for longer than the patience of the settings.
"""

import asyncio
import random
import re
from functools import lru_cache
from typing import Final, TypeVar

from engine.ports.clock import Clock
from engine.ports.workers import Workers
from herd.errors import CommitUnknown, Error, InterfaceError, LeaderUnavailable, SessionLost
from herd.wire import messages
from herd.wire.contract import Route
from herd.wire.failures import error_of
from herd.wire.messages import MALFORMED, Answer, Failed, decode_answer, encode
from herd.wire.results import ColumnsRead
from herd.wire.settings import WireSettings

A = TypeVar("A")
_CHANGES: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|UPSERT|REPLACE|MERGE)\b", re.IGNORECASE)
_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_COMMIT: Final = re.compile(
    rf"{_SPACE}*(COMMIT|END)({_SPACE}+(WORK|TRANSACTION))?({_SPACE}|;)*", re.IGNORECASE | re.DOTALL
)
_WORD: Final = re.compile(rf"{_SPACE}*([A-Za-z]+)", re.DOTALL)
_REPEATABLE: Final = frozenset(
    {
        *("SELECT", "VALUES", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "FROM", "TABLE"),
        *(
            "CHECK",
            "INGEST",
            "BEGIN",
            "START",
            "SET",
            "ROLLBACK",
            "ABORT",
            "COMMIT",
            "END",
            "SAVEPOINT",
            "RELEASE",
        ),
    }
)


class Calling:
    """The calls of one remote herd. On the event loop."""

    def __init__(
        self,
        route: Route,
        clock: Clock,
        rng: random.Random,
        workers: Workers,
        settings: WireSettings | None = None,
    ) -> None:
        self.route = route
        self.rng = rng
        self.workers = workers
        self.settings = settings or WireSettings()
        self.columns = ColumnsRead()
        self._clock = clock

    def patience(self) -> "Patience":
        """How long a caller goes on."""
        return Patience(self._clock, self.rng, self.settings)

    async def ask(self, tablespace: str, call: messages.Call, *, again: bool) -> Answer:
        """The answer to a call that needs no session.

        `again`: it may be done twice. Raises what the server told, `LeaderUnavailable`,
        `CommitUnknown` for a change whose answer got lost.
        """
        message, patience = encode(call), self.patience()
        while True:
            channel = await self.route.channel(tablespace)
            try:
                answer = decoded(await channel.ask(message))
            except SessionLost as error:
                if not again:
                    raise unknown(error) from error
                await patience.wait(error)
                continue
            if type(answer) is not Failed:
                return answer
            told = error_of(answer)
            if not (
                isinstance(told, LeaderUnavailable) and self.route.moved(tablespace, answer.leader)
            ):
                raise told
            await patience.wait(told)


class Patience:
    """When to try again, and when no more: what has worked for long counts for nothing."""

    def __init__(self, clock: Clock, rng: random.Random, settings: WireSettings) -> None:
        self._clock = clock
        self._rng = rng
        self._patience_s = settings.patience_ms / 1000
        self._deadline_s: float | None = None
        self._pause_s = settings.retry_first_ms / 1000
        self._pause_max_s = settings.retry_max_ms / 1000

    async def wait(self, error: Error) -> None:
        """A pause before the next try. Raises `error` if there is to be none."""
        now_s = self._clock.monotonic()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._patience_s
        if now_s >= self._deadline_s:
            raise error
        await asyncio.sleep(self._pause_s * self._rng.uniform(0.5, 1.0))
        self._pause_s = min(2 * self._pause_s, self._pause_max_s)


def decoded(data: bytes) -> Answer:
    """An answer as it was told. Raises `InterfaceError` for bytes that are none."""
    try:
        answer: Answer = decode_answer(data)
        return answer
    except MALFORMED as error:
        raise InterfaceError(f"the server's answer cannot be read: {error}") from error


def expect(answer: Answer, kind: type[A]) -> A:
    """An answer of the kind that belongs to its call. Raises `InterfaceError` for another."""
    if not isinstance(answer, kind):
        raise InterfaceError(f"the server answered {type(answer).__name__}, not {kind.__name__}")
    return answer


def unknown(error: Error) -> CommitUnknown:
    """What a change says whose answer got lost."""
    return CommitUnknown(
        f"no answer came: {error.message}", hint="read what it was to change to know"
    )


@lru_cache(maxsize=1_024)
def commits(text: str) -> bool:
    """Whether a statement is a COMMIT."""
    return _COMMIT.fullmatch(text) is not None


@lru_cache(maxsize=1_024)
def repeatable(text: str) -> bool:
    """Whether a statement, outside a transaction, can be run again without harm."""
    found = _WORD.match(text)
    if found is None:
        return False
    word = found[1].upper()
    return word in _REPEATABLE or (word == "WITH" and _CHANGES.search(text) is None)
