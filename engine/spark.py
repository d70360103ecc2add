"""Spark's `format("ledger")`: the entries of a ledger or of a log as they are, a batch or a stream.

    spark.read.format("ledger").option("ledger", "7").load()
    spark.readStream.format("ledger").option("log", "orders").option("maxRows", "10000").load()

    ledger, log  which one: a ledger by its number, or a replicated log by its name
    start        earliest (unless said), latest, ledger/entry: all entries after that one
    end          of a batch: latest (unless said) or ledger/entry: up to and with that one
    maxRows      of a stream: how many entries a batch may have
    consumer     of a stream of a log: a name under which what it has not dealt with is kept for a
                 week; without one it is kept as long as the query lives

The columns are `ledger`, `entry` and `body`.

Invariants:
- An offset is a position. Nothing past the last add confirmed is told, and no writer is disturbed.
- What is gone is an error, never an end.
- An option that means nothing is an error: a misspelt one must not read something else.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from engine.application import Application
from engine.errors import InvalidRequest
from engine.log import Position, Span
from engine.place import Place, for_tasks
from engine.settling import settled
from engine.spans import EARLIEST, LATEST, Entries, Follower

_BOTH: Final = ("ledger", "log", "start", "token", "url")
_OF_A_BATCH: Final = ("end",)
_OF_A_STREAM: Final = ("maxrows", "consumer")
_SCHEMA: Final = "ledger BIGINT, entry BIGINT, body BINARY"
_ARROW_SCHEMA: Final = pa.schema(
    [("ledger", pa.int64()), ("entry", pa.int64()), ("body", pa.binary())]
)


class LedgerSource(DataSource):
    """Entries. `place` and `application` are told by who registers it."""

    place: Place = Place()
    application: Application = Application()

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = {name.lower(): value for name, value in self.options.items()}
        self._entries = _entries(self.place, self._options)
        self._start = self._entries.position(self._options.get("start", EARLIEST))
        self._end = self._entries.position(self._options.get("end", LATEST))

    @classmethod
    def name(cls) -> str:
        """What `format` is told."""
        return "ledger"

    def schema(self) -> str:
        """Where an entry is, and what it is."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads the entries that were there when the source was made."""
        _refuse(self._options, _OF_A_STREAM, "of a stream")
        return EntriesReader(self._entries, self._start, self._end)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """What goes on with those that come."""
        _refuse(self._options, _OF_A_BATCH, "of a batch: a stream goes on until it is stopped")
        return EntriesStream(self._entries, self._options)


class SpanPartition(InputPartition):
    """Entries of one ledger, and how tasks reach the store."""

    def __init__(self, span: Span, place: Place) -> None:
        self.span = span
        self.place = place


class EntriesReader(DataSourceReader):
    """Reads a batch. It travels to the executors."""

    def __init__(self, entries: Entries, start: Position, end: Position) -> None:
        self._entries = entries
        self._start = start
        self._end = end

    def partitions(self) -> list[InputPartition]:
        """A partition a span."""
        return _partitions(self._entries, self._start, self._end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one span."""
        return _read(self._entries, partition)


class Following(Protocol):
    """What the driver of a stream has, and no executor: it knows how far a log goes."""

    def stop_at_end(self) -> None:
        """Tell of nothing that is not there yet."""
        ...

    def commit(self, end: Position) -> None:
        """Keep what lies before that no longer."""
        ...

    def close(self) -> None:
        """End."""
        ...


F = TypeVar("F", bound=Following)


class PositionStream(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[F]):
    """A stream whose offsets are positions of a log. It travels to the executors."""

    _follower: F | None = None

    @abstractmethod
    def _follow(self) -> F:
        """Begin to follow, on the driver."""

    @abstractmethod
    def _begin(self) -> Position:
        """Where a query begins that has no checkpoint of its own yet."""

    @abstractmethod
    def _latest(self, start: Position, limit: ReadLimit) -> Position:
        """How far the next batch goes."""

    @abstractmethod
    def _parts(self, start: Position, end: Position) -> list[InputPartition]:
        """What executors read."""

    def initialOffset(self) -> dict[str, int]:
        """Where a query begins that has no checkpoint of its own yet."""
        return _offset(self._begin())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next batch goes."""
        return _offset(self._latest(_position(start), limit))

    def prepareForTriggerAvailableNow(self) -> None:
        """What is not there yet is not told by this run."""
        self._following.stop_at_end()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """What executors read."""
        return self._parts(_position(start), _position(end))

    def commit(self, end: dict[str, int]) -> None:
        """What lies up to there is needed no more."""
        self._following.commit(_position(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._follower is not None:
            self._follower.close()

    @property
    def _following(self) -> F:
        if self._follower is None:
            self._follower = self._follow()
        return self._follower


class EntriesStream(PositionStream[Follower]):
    """A stream of entries."""

    def __init__(self, entries: Entries, options: Mapping[str, str]) -> None:
        self._entries = entries
        self._start = options.get("start", EARLIEST)
        self._entries_max = _number(options, "maxrows")
        self._consumer = options.get("consumer", "")

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the option maxRows says."""
        limit = self._entries_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one span."""
        return _read(self._entries, partition)

    def _follow(self) -> Follower:
        return Follower(self._entries, self._consumer)

    def _begin(self) -> Position:
        return self._entries.position(self._start)

    def _latest(self, start: Position, limit: ReadLimit) -> Position:
        entries_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._following.latest(start, entries_max)

    def _parts(self, start: Position, end: Position) -> list[InputPartition]:
        return _partitions(self._entries, start, end)


def _entries(place: Place, options: Mapping[str, str]) -> Entries:
    known = (*_BOTH, *_OF_A_BATCH, "maxRows", "consumer")
    for option in options:
        if option not in map(str.lower, known):
            raise InvalidRequest(
                f'format "ledger" has no option {option}; it has {", ".join(known)}'
            )
    if ("ledger" in options) == ("log" in options):
        raise InvalidRequest('say which: .option("ledger", "7") or .option("log", "orders")')
    at = place.at(options.get("url"), options.get("token"))
    if "log" in options:
        return Entries(place=at, log=options["log"])
    return Entries(place=at, ledger=_number(options, "ledger"))


def _refuse(options: Mapping[str, str], names: tuple[str, ...], of: str) -> None:
    for name in names:
        if name in options:
            raise InvalidRequest(f"{name} is an option {of}")


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidRequest(f"{name}={text!r}: give a number of 1 or more")
    return int(text)


def _partitions(entries: Entries, start: Position, end: Position) -> list[InputPartition]:
    place = for_tasks(entries.place)
    return [SpanPartition(span, place) for span in entries.spans(start, end)]


def _read(entries: Entries, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes one partition of none.
    if not isinstance(partition, SpanPartition):
        return
    entries = msgspec.structs.replace(entries, place=partition.place)
    for span, bodies in settled(entries.read(partition.span)):
        columns = [
            pa.array(repeat(span.ledger, span.entries), pa.int64(), size=span.entries),
            pa.array(range(span.first, span.first + span.entries), pa.int64()),
            pa.array(bodies, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW_SCHEMA)


def _offset(position: Position) -> dict[str, int]:
    return {"ledger": position.ledger, "entry": position.entry}


def _position(offset: Mapping[str, Any]) -> Position:
    return Position(offset["ledger"], offset["entry"])
