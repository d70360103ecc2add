"""One query process: it answers one query after the other, for as long as the node asks.

Invariants:
- It ends when the node closes its socket, even while a query runs, and when its supervisor ends.
- A query's time is bounded by a timer of the system: a query cannot delay it.
- It never holds more memory than its limit allows: the system refuses further allocations.
"""

import os
import pickle
import resource
import select
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, NoReturn

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.ipc

from engine import limits
from herd.errors import Error
from herd.reading import Stream, mapped, without_places
from herd.sql import query_frames as frames
from herd.sql.duck import answered, open_duck
from herd.sql.query_settings import QuerySettings
from herd.translating import database_error

_FILE_BYTES: Final = 16 * limits.MIB
"""Up to this size an answer goes through the socket, larger ones through a file."""
_DUCK_SHARE: Final = 0.75
"""DuckDB's own limit: above it DuckDB spills to disk, long before the process is killed."""
_TOGETHER_BYTES: Final = limits.MIB
_SPENT_BYTES: Final = 64 * limits.MIB
"""A process that has grown by more than this takes no other query."""
_HEADROOM: Final = 1.5
_ROOM_BYTES: Final = 256 * limits.MIB
"""What a process may ask for beyond `memory_bytes`: stacks and allocator overhead."""
_TEXT_CHARACTERS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Pages:
    """A table: column names, numbers of shared pages with places to skip, and other batches."""

    schema: bytes
    pages: tuple[tuple[int, tuple[int, ...]], ...]
    batches: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Streaming:
    """A table whose rows the node sends on request."""

    schema: bytes


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its inputs. `forget` are pages that are no longer needed."""

    sql: str
    parameters: tuple[Any, ...]
    inputs: dict[str, Pages | Streaming]
    forget: tuple[int, ...]


def run_child(link: socket.socket, settings: QuerySettings, folder: str) -> NoReturn:
    """Answer queries until the node has ended."""
    ending = threading.Thread(  # noqa: TID251 (a process of its own)
        target=_end_with, args=(link,), daemon=True
    )
    ending.start()
    _limit_memory(settings.memory_bytes)
    child = _Child(link, settings, folder)
    while (frame := frames.receive(link)) is not None:
        child.hear(*frame)
    os._exit(0)


def _end_with(link: socket.socket) -> None:
    """End the process when the other side of a socket is closed."""
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def _limit_memory(memory_bytes: int) -> None:
    allowed = private_bytes("self", 5) + int(_HEADROOM * memory_bytes) + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


def private_bytes(pid: str, column: int = 1) -> int:
    """The private memory of a process; with `column` 5 of statm, what it has allocated.

    Raises `OSError` if it has ended.
    """
    with open(f"/proc/{pid}/statm", "rb") as file:
        fields = file.read().split()
    pages = int(fields[column]) - (int(fields[2]) if column == 1 else 0)
    return pages * resource.getpagesize()


class _Child:
    def __init__(self, link: socket.socket, settings: QuerySettings, folder: str) -> None:
        self._link = link
        share = int(_DUCK_SHARE * settings.memory_bytes)
        self._settings = replace(settings, memory_bytes=share)
        self._folder = folder
        self._pages: dict[int, pa.RecordBatch] = {}
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._first_bytes = private_bytes("self")
        self._turn = threading.Lock()
        """Held while a frame is sent or a batch is requested: DuckDB reads in its own threads."""

    def hear(self, kind: int, body: bytearray, fds: list[int]) -> None:
        """Execute a frame."""
        if kind == frames.PAGES:
            self._map(msgspec.msgpack.decode(body, type=frames.PageNames), fds)
        elif kind == frames.QUERY:
            self._answer(pickle.loads(body))

    def _map(self, told: frames.PageNames, fds: list[int]) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(told.schema))
        for number, size_bytes, fd in zip(told.numbers, told.sizes, fds, strict=True):
            self._pages[number] = mapped(fd, size_bytes, schema)
            os.close(fd)

    def _answer(self, question: Question) -> None:
        for number in question.forget:
            self._pages.pop(number, None)
        signal.setitimer(signal.ITIMER_REAL, self._settings.run_timeout_ms / 1000)
        sink = _Sink(self._link, self._turn, self._folder)
        try:
            names = self._run(question, sink)
        except BrokenPipeError:
            os._exit(0)
        except Exception as error:
            failure = database_error(error)
            sink.end(frames.FAILED, _wrong(failure, self._is_spent()))
        else:
            sink.end(frames.DONE, frames.Done(names, self._is_spent()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _run(self, question: Question, sink: "_Sink") -> tuple[str, ...]:
        if self._connection is None:
            self._connection = open_duck(self._settings, self._folder)
        inputs = {name: self._input(name, one) for name, one in question.inputs.items()}
        with answered(
            self._connection,
            question.sql,
            question.parameters,
            inputs,
            settings=self._settings,
        ) as answer:
            sink.send(answer.schema, answer.batches())
            return tuple(answer.names)

    def _input(self, name: str, told: Pages | Streaming) -> Callable[[], Any]:
        schema = pa.ipc.read_schema(pa.py_buffer(told.schema))
        if isinstance(told, Pages):
            return lambda: self._table(told, schema)
        numbers = count()
        return lambda: Stream(schema, lambda: self._batches(name, next(numbers), schema))

    def _table(self, told: Pages, schema: pa.Schema) -> pa.Table:
        names = schema.names
        batches = [
            without_places(self._pages[number].select(names), places)
            for number, places in told.pages
        ]
        batches += [pa.ipc.read_record_batch(pa.py_buffer(one), schema) for one in told.batches]
        return pa.Table.from_batches(batches, schema)

    def _batches(self, name: str, stream: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The batches of an input that the node sends. Runs in a thread of DuckDB."""
        wanted = msgspec.msgpack.encode(frames.Next(name, stream))
        while True:
            with self._turn:
                frames.send(self._link, frames.NEXT, wanted)
                frame = frames.receive(self._link)
            if frame is None:
                os._exit(0)
            kind, body, _ = frame
            if kind == frames.WRONG:
                raise Error("the rows cannot be read")
            if kind == frames.END:
                return
            yield pa.ipc.read_record_batch(pa.py_buffer(body), schema)

    def _is_spent(self) -> bool:
        return private_bytes("self") - self._first_bytes > _SPENT_BYTES


class _Sink:
    """Sends an answer; a small one in one piece, so that the node wakes up once."""

    def __init__(self, link: socket.socket, turn: threading.Lock, folder: str) -> None:
        self._link = link
        self._turn = turn
        self._folder = folder
        self._parts: list[Any] = []
        self._size_bytes = 0

    def send(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        """Send the schema and all batches; large ones through a file without a name."""
        self._add(frames.SCHEMA, schema.serialize())
        size_bytes = 0
        for batch in batches:
            size_bytes += batch.nbytes
            if size_bytes > _FILE_BYTES:
                self._flush()
                self._send_file(schema, batch, batches)
                return
            self._add(frames.BATCH, batch.serialize())

    def end(self, kind: int, told: frames.Done | frames.Wrong) -> None:
        """Send the final frame."""
        self._add(kind, msgspec.msgpack.encode(told))
        try:
            self._flush()
        except OSError:
            os._exit(0)

    def _add(self, kind: int, body: Any) -> None:
        self._parts += frames.framed(kind, body)
        self._size_bytes += len(body)
        if self._size_bytes > _TOGETHER_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            with self._turn:
                frames.send_together(self._link, self._parts)
            self._parts, self._size_bytes = [], 0

    def _send_file(
        self, schema: pa.Schema, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
    ) -> None:
        with tempfile.TemporaryFile(dir=self._folder) as file:
            with pa.ipc.new_stream(file, schema) as writer:
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            with self._turn:
                frames.send(self._link, frames.FILE, b"", [file.fileno()])


def _wrong(error: Error, spent: bool) -> frames.Wrong:
    message, hint = error.message[:_TEXT_CHARACTERS_MAX], error.hint[:_TEXT_CHARACTERS_MAX]
    return frames.Wrong(type(error).__name__, message, hint, error.place, spent)


def rows_of_file(fd: int, size_bytes_max: int) -> pa.Table:
    """The rows in the file of a FILE frame; closes `fd`.

    Raises `OSError`, and `ValueError` if the file is too large.
    """
    with open(fd, "rb") as file:
        file.seek(0)
        # Not mapped: a truncated file, or a disk that fails, would kill the node.
        body = file.read(size_bytes_max + 1)
    if len(body) > size_bytes_max:
        raise ValueError(f"a file of more than {size_bytes_max} bytes")
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()
