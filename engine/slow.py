"""The log of slow operations: a line of JSON for each that took long, and none for all others.

    {"slow": "append", "ms": 812.4, "waited": "bookie", "bookie": "9f3c...", "ledger": 17, ...}

What is long a process says once, by `configure`; before that nothing is. There is one such log a
process, as there is one of each logger: lines go to the logger `herdbook.slow`.

Invariants:
- An operation that is not slow costs one comparison: no text is made of it, no line, no call.
- A line names things by their ids. It holds no value of a row, no body, no name of an object.
- More lines than `lines_a_second` are not written; the next one that is says how many were not.
"""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from engine.errors import InvalidRequest
from engine.ports.clock import SystemClock

VARIABLE: Final = "HERDBOOK_SLOW"
_NEVER: Final = math.inf
_logger = logging.getLogger("herdbook.slow")


class _Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some start."""
        ...


@dataclass(frozen=True, slots=True)
class SlowSettings:
    """From how many milliseconds on an operation is slow; 0: never.

    `append_ms` is of one bookie's acknowledgement of appends, `sync_ms` of a sync of its journal,
    `sql_ms` of a statement, `object_ms` of putting or getting an object, `round_ms` of a broker's
    round, from taking tasks until the assignments are durable.
    """

    append_ms: int = 500
    sync_ms: int = 500
    sql_ms: int = 1_000
    object_ms: int = 2_000
    round_ms: int = 500
    lines_a_second: int = 10

    def __post_init__(self) -> None:
        each = (self.append_ms, self.sync_ms, self.sql_ms, self.object_ms, self.round_ms)
        assert min(each) >= 0 and self.lines_a_second >= 1


class SlowLog:
    """Thresholds, in seconds, to be compared with; and the lines. On any thread's loop."""

    def __init__(self) -> None:
        self.append_s = self.sync_s = self.sql_s = self.object_s = self.round_s = _NEVER
        self._clock: _Clock | None = None
        self._lines_a_second = 0
        self._left = 0.0
        self._refilled_s = 0.0
        self._unwritten = 0

    def configure(self, settings: SlowSettings | None, clock: _Clock | None = None) -> None:
        """Say what is slow from now on, by the system's clock unless another is given; None:
        nothing is."""
        if settings is not None and clock is None:
            clock = SystemClock()
        wanted = settings or SlowSettings(0, 0, 0, 0, 0)
        self.append_s = _seconds(wanted.append_ms)
        self.sync_s = _seconds(wanted.sync_ms)
        self.sql_s = _seconds(wanted.sql_ms)
        self.object_s = _seconds(wanted.object_ms)
        self.round_s = _seconds(wanted.round_ms)
        self._clock = clock
        self._lines_a_second = wanted.lines_a_second
        self._left = float(wanted.lines_a_second)
        self._refilled_s = clock.monotonic() if clock is not None else 0.0
        self._unwritten = 0

    def note(self, kind: str, took_s: float, **facts: str | float) -> None:
        """Write a line of an operation that was slow."""
        if self._clock is None or not self._may_write(self._clock.monotonic()):
            self._unwritten += 1
            return
        line: dict[str, str | float] = {"slow": kind, "ms": _milliseconds(took_s), **facts}
        if self._unwritten:
            line["unwritten"], self._unwritten = self._unwritten, 0
        _logger.warning("%s", json.dumps(line))

    def _may_write(self, now_s: float) -> bool:
        most = float(self._lines_a_second)
        self._left = min(most, self._left + (now_s - self._refilled_s) * most)
        self._refilled_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


SLOW: Final = SlowLog()
"""The log of this process."""


def waited_longest(**parts_s: float) -> dict[str, str | float]:
    """The facts of an operation's parts: which was the longest, and each in milliseconds.

    >>> waited_longest(bytes=0.002, name=1.5)
    {'waited': 'name', 'bytes_ms': 2.0, 'name_ms': 1500.0}
    """
    longest = max(parts_s, key=parts_s.__getitem__)
    told: dict[str, str | float] = {"waited": longest}
    return {**told, **{f"{name}_ms": _milliseconds(took_s) for name, took_s in parts_s.items()}}


def configure_from(environment: Mapping[str, str], clock: _Clock) -> None:
    """Say what is slow as `HERDBOOK_SLOW` does: "on", or "append_ms=200,sql_ms=50".

    What is not named is as usual; without the variable nothing is slow. Raises `InvalidRequest`.
    """
    told = environment.get(VARIABLE, "")
    if told:
        SLOW.configure(parse_settings(told), clock)


def parse_settings(told: str) -> SlowSettings:
    """Settings as text: "on", names and numbers, or both. Raises `InvalidRequest`.

    >>> parse_settings("append_ms=200, sql_ms=0").append_ms
    200
    """
    wanted: dict[str, int] = {}
    for part in told.split(","):
        if part.strip() == "on":
            continue
        name, equals, number = (each.strip() for each in part.partition("="))
        if name not in SlowSettings.__dataclass_fields__ or not equals or not number.isdecimal():
            names = ", ".join(SlowSettings.__dataclass_fields__)
            raise InvalidRequest(
                f'{VARIABLE} says {part.strip()!r}: it is "on", or some of {names}, each with a '
                "number, as in append_ms=200,sql_ms=1000"
            )
        wanted[name] = int(number)
    if wanted.get("lines_a_second") == 0:
        raise InvalidRequest(f"{VARIABLE} says lines_a_second=0: at least one line is written")
    return SlowSettings(**wanted)


def _seconds(threshold_ms: int) -> float:
    return threshold_ms / 1000 if threshold_ms else _NEVER


def _milliseconds(took_s: float) -> float:
    return round(took_s * 1000, 1)
