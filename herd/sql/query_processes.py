"""Queries in separate processes, so that no query can exhaust a node's memory or block it.

Each process answers one query at a time. A thread of the node talks to it; both map the pages of
tables, so that no rows are copied. To end a query, its process is killed.

Invariants:
- A process runs one query or is idle. It is not reused unless its last answer was read to its end.
- An idle process is kept only for seconds, because the pages that it has mapped stay in memory.
- A query that runs for long gets the lowest priority, and its process is not used again.
"""

import asyncio
import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.ipc

from engine import limits
from engine.ports.system_workers import ThreadWorkers
from engine.ports.workers import Workers
from herd import errors
from herd.arrow import described
from herd.reading import SharedBatch, Stream, TablePages, without_places
from herd.sql import query_frames as frames
from herd.sql.duck import DuckThreads, Work
from herd.sql.query_child import Pages, Question, Streaming, rows_of_file
from herd.sql.query_pool import QueryPool
from herd.sql.query_settings import CONNECTIONS, HOLDING, QuerySettings
from herd.sql.query_supervisor import Start
from herd.sql.small_queries import SmallQueries, small_settings
from herd.translating import database_error
from herd.turns import until_done

SHARED_BYTES_MIN: Final = 256 * limits.KIB
"""A smaller page is copied for each query, because sharing it would need a file descriptor."""
_SLOW_S: Final = 0.25
"""A query that has run for this long gets the lowest priority."""
_IDLE_S: Final = 5.0
_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""The variables that query processes get; the rest of the environment may have secrets."""
_ENDED_S: Final = 5.0
_ANSWER_EXTRA_BYTES: Final = 64 * limits.MIB
"""The bytes that an answer's frames may have beyond its rows; with more, a process is broken."""
_KINDS: Final[dict[str, type[errors.Error]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.Error)
}


@asynccontextmanager
async def query_processes(
    memory_bytes: int, folder: Path, kept_bytes: Callable[[int], int] | None = None
) -> AsyncIterator[QueryPool | None]:
    """The queries of a server, each that is not small in its own process, while the block lasts.

    A query may hold `memory_bytes`. `kept_bytes` says of a disk's size how much of it queries leave
    free. The first query creates `folder` again, for its files, and deletes the files that killed
    processes have left there. None if the system is not Linux: queries then run in threads.
    """
    if sys.platform != "linux":
        yield None
        return
    settings = QuerySettings(
        connections=CONNECTIONS,
        holding=HOLDING,
        share=CONNECTIONS // 2,
        memory_bytes=memory_bytes,
        temporary=str(folder),
    )
    workers = ThreadWorkers(asyncio.get_running_loop(), CONNECTIONS + HOLDING)
    try:
        small = DuckThreads(workers, small_settings(settings))
        runner = SmallQueries(small, QueryProcesses(workers, settings, kept_bytes))
        pool = QueryPool(runner, settings)
        try:
            yield pool
        finally:
            await pool.close()
    finally:
        await workers.close()


class QueryProcesses:
    """Runs queries in processes (Linux). All methods on the event loop."""

    def __init__(
        self,
        workers: Workers,
        settings: QuerySettings,
        kept_bytes: Callable[[int], int] | None = None,
    ) -> None:
        """`workers` has a thread for each query that may run at the same time."""
        self._kept_bytes = kept_bytes
        self._workers = workers
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Future[_Supervisor] | None = None
        self._supervisor: _Supervisor | None = None
        self._idle: list[_Process] = []
        self._timers: dict[_Process, asyncio.TimerHandle] = {}
        self._closed = False

    async def run(self, work: Work) -> pa.Table:
        """Run one query; see `QueryRunner.run`."""
        supervisor = await self._opened()
        process = self._take(supervisor)
        slow = self._loop.call_later(_SLOW_S, process.slow)
        job = asyncio.ensure_future(self._workers.run(lambda: process.answer(work)))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            process.kill()
            await until_done(job)
            if not job.cancelled():
                job.exception()
            raise
        finally:
            slow.cancel()
            self._leave(process)

    async def close(self) -> None:
        """End all processes; see `QueryRunner.close`."""
        self._closed = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._idle:
            self._idle.pop().close()
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.stop_listening()
            await self._workers.run(supervisor.close)

    async def _opened(self) -> "_Supervisor":
        if self._closed:
            raise errors.InterfaceError("the query engine is closed")
        before = self._supervisor
        if before is not None and not before.ended:
            return before
        if self._opening is None:
            self._opening = asyncio.ensure_future(
                self._workers.run(lambda: _start(self._settings, self._kept_bytes, before))
            )
            self._opening.add_done_callback(self._was_opened)
        return await asyncio.shield(self._opening)

    def _was_opened(self, opening: "asyncio.Future[_Supervisor]") -> None:
        """Keep the supervisor, even if nobody waits for it any more."""
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._supervisor = opening.result()
            self._supervisor.listen()

    def _take(self, supervisor: "_Supervisor") -> "_Process":
        while self._idle:
            process = self._idle.pop()
            self._timers.pop(process).cancel()
            if not process.ended.done():
                return process
            process.close()
        return supervisor.fork()

    def _leave(self, process: "_Process") -> None:
        if process.spent or process.ended.done() or self._closed:
            process.close()
            return
        self._idle.append(process)
        self._timers[process] = self._loop.call_later(_IDLE_S, self._forget, process)

    def _forget(self, process: "_Process") -> None:
        self._timers.pop(process, None)
        with contextlib.suppress(ValueError):
            self._idle.remove(process)
            process.close()


class _Supervisor:
    """The process that forks the others. All methods except `close` run on the event loop."""

    def __init__(
        self,
        link: socket.socket,
        child: "subprocess.Popen[bytes]",
        folder: str,
        answer_bytes_max: int,
    ) -> None:
        self.ended = False
        """Whether it can create no more processes."""
        self._link = link
        self._child = child
        self._folder = folder
        self._answer_bytes_max = answer_bytes_max
        self._numbers = 0
        self._processes: dict[int, _Process] = {}

    def fork(self) -> "_Process":
        """Create a query process."""
        here, there = socket.socketpair()
        with there:
            process = _Process(self, self._numbers, here, self._answer_bytes_max)
            self._processes[self._numbers] = process
            self._numbers += 1
            self.tell(frames.FORK, process.number, [there.fileno()])
        return process

    def tell(self, kind: int, number: int, fds: list[int] | None = None) -> None:
        """Send a message about a process. Nothing is sent once the supervisor has ended."""
        with contextlib.suppress(OSError):
            frames.send(self._link, kind, number.to_bytes(8, "big"), fds or [])

    def close(self) -> None:
        """End it and all its processes. Called in a thread."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._child.wait()
        self._link.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def listen(self) -> None:
        """Read its messages from now on."""
        asyncio.get_running_loop().add_reader(self._link, self._hear)

    def _hear(self) -> None:
        frame = frames.receive(self._link)
        if frame is None:
            self.stop_listening()
            return
        told = msgspec.msgpack.decode(frame[1], type=frames.Ended)
        process = self._processes.pop(told.number, None)
        if process is not None:
            process.ended.set_result(told)

    def stop_listening(self) -> None:
        """Read no more messages. It ends, with all its processes. May be called twice."""
        asyncio.get_running_loop().remove_reader(self._link)
        self.ended = True
        while self._processes:
            number, process = self._processes.popitem()
            process.ended.set_result(frames.Ended(number, signal.SIGKILL))


def _start(
    settings: QuerySettings, kept_bytes: Callable[[int], int] | None, before: _Supervisor | None
) -> _Supervisor:
    """Start it, in a thread, after the previous one has ended. Raises `StorageFailed`."""
    if before is not None:
        before.close()
    try:
        folder = settings.temporary
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder, mode=0o700)
        else:
            folder = tempfile.mkdtemp(prefix="herd-")
        if kept_bytes is not None:
            total_bytes = shutil.disk_usage(folder).total
            settings = replace(settings, disk_kept_bytes=kept_bytes(total_bytes))
    except OSError as error:
        failure = database_error(error)
        raise failure from None
    here, there = socket.socketpair()
    environment = {name: value for name in _ENVIRONMENT if (value := os.environ.get(name))}
    # The supervisor forks: Arrow's allocator must have no thread of its own.
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        with there:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "herd.sql.query_supervisor", str(there.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[there.fileno()],
                env=environment,
            )
    except OSError as error:
        here.close()
        shutil.rmtree(folder, ignore_errors=True)
        failure = database_error(error)
        raise failure from None
    frames.send(here, frames.START, msgspec.msgpack.encode(Start(settings, folder)))
    answer_bytes_max = 2 * settings.result_bytes_max + _ANSWER_EXTRA_BYTES
    return _Supervisor(here, child, folder, answer_bytes_max)


class _Process:
    """One query process. `answer` runs in a thread, everything else on the event loop."""

    def __init__(
        self, supervisor: _Supervisor, number: int, link: socket.socket, answer_bytes_max: int
    ) -> None:
        self.number = number
        self.ended: Future[frames.Ended] = Future()
        """How it ended, once it has."""
        self._supervisor = supervisor
        self._link = link
        self._answer_bytes_max = answer_bytes_max
        self._clean = True
        """Whether its last answer was read to the end, so that nothing of it is still in the
        socket.
        """
        self._slow = self._killed = False
        self._known: weakref.WeakValueDictionary[int, SharedBatch] = weakref.WeakValueDictionary()
        self._told: set[int] = set()
        """The shared pages that it has mapped."""

    @property
    def spent(self) -> bool:
        """Whether it gets no more queries."""
        return self._slow or self._killed or not self._clean

    def slow(self) -> None:
        """Give it the lowest priority from now on."""
        self._slow = True
        self._supervisor.tell(frames.SLOW, self.number)

    def kill(self) -> None:
        """End it, even while a thread talks to it."""
        self._killed = True
        self._supervisor.tell(frames.KILL, self.number)
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, when no thread talks to it any more."""
        self.kill()
        self._link.close()

    def answer(self, work: Work) -> pa.Table:
        """Run a query. Raises the database's errors, which keep no reference to the query."""
        self._clean = False
        try:
            return self._answer(work)
        except Exception as error:
            failure = database_error(work.failures[0] if work.failures else error)
        raise failure.with_traceback(None)

    def _answer(self, work: Work) -> pa.Table:
        streams: dict[str, Stream] = {}
        inputs: dict[str, Pages | Streaming] = {}
        shared: dict[int, SharedBatch] = {}
        """Kept until the answer: the process must not forget pages that the query names."""
        for name, make in work.inputs.items():
            made = make()
            if isinstance(made, TablePages):
                inputs[name] = self._pages(made, shared)
            elif isinstance(made, Stream):
                streams[name] = made
                inputs[name] = Streaming(_schema(made.schema))
            else:
                inputs[name] = _copied(made)
        gone = tuple(self._told - set(self._known))
        question = pickle.dumps(Question(work.sql, tuple(work.parameters), inputs, gone))
        try:
            self._share([one for number, one in shared.items() if number not in self._told])
            self._told.difference_update(gone)
            frames.send(self._link, frames.QUERY, question)
            return self._heard(streams)
        except (ConnectionError, EOFError):
            raise self._ending() from None
        except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
            raise errors.InternalError(
                f"the answer of the query's process cannot be read: {error}",
                hint="rewrite the statement",
            ) from None

    def _pages(self, made: TablePages, shared: dict[int, SharedBatch]) -> Pages:
        """The names of a table's pages; adds the shared ones to `shared`."""
        names, pages, batches = made.schema.names, [], []
        for page, places in made.pages:
            one = page.share() if page.size_bytes >= SHARED_BYTES_MIN else None
            if one is None:
                batches.append(_body(without_places(page.batch.select(names), places)))
            else:
                shared[one.number] = one
                pages.append((one.number, tuple(places)))
        if made.added is not None:
            batches.append(_body(made.added))
        return Pages(_schema(made.schema), tuple(pages), tuple(batches))

    def _share(self, new: list[SharedBatch]) -> None:
        """Let the process map pages; all pages of one frame have the same schema."""
        by_schema: dict[bytes, list[SharedBatch]] = {}
        for one in new:
            by_schema.setdefault(_schema(one.schema), []).append(one)
        for schema, all_of_it in by_schema.items():
            for start in range(0, len(all_of_it), frames.FDS_MAX):
                some = all_of_it[start : start + frames.FDS_MAX]
                numbers = tuple(one.number for one in some)
                told = frames.PageNames(schema, numbers, tuple(one.size_bytes for one in some))
                fds = [one.fd for one in some]
                frames.send(self._link, frames.PAGES, msgspec.msgpack.encode(told), fds)
                self._told.update(numbers)
                self._known.update({one.number: one for one in some})

    def _heard(self, streams: dict[str, Stream]) -> pa.Table:
        """Receive its answer, and send the batches that it asks for meanwhile.

        Raises `ValueError`, `TypeError`, `LookupError` or `MsgspecError` for a frame that a
        correct process never sends.
        """
        schema: pa.Schema | None = None
        batches: list[pa.RecordBatch] = []
        begun: dict[tuple[str, int], Iterator[pa.RecordBatch]] = {}
        left = self._answer_bytes_max
        while (frame := frames.receive(self._link, left)) is not None:
            kind, body, fds = frame
            left -= len(body)
            file = fds.pop() if kind == frames.FILE and len(fds) == 1 else -1
            frames.close_all(fds)
            if kind == frames.NEXT:
                wanted = msgspec.msgpack.decode(body, type=frames.Next)
                key = (wanted.name, wanted.stream)
                if key not in begun:
                    begun[key] = streams[wanted.name].batches()
                self._give(begun[key])
            elif kind == frames.SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(body))
            elif kind == frames.BATCH:
                batches.append(pa.ipc.read_record_batch(pa.py_buffer(body), schema))
            elif kind == frames.FILE:
                batches += rows_of_file(file, left).to_batches()
            elif kind == frames.DONE:
                done = msgspec.msgpack.decode(body, type=frames.Done)
                table = pa.Table.from_batches(batches, schema)
                table.validate(full=True)
                self._clean = not done.spent
                return described(table, list(done.names))
            else:
                wrong = msgspec.msgpack.decode(body, type=frames.Wrong)
                kind_of = _KINDS.get(wrong.name, errors.InternalError)
                self._clean = not wrong.spent and kind_of is not errors.InternalError
                raise kind_of(wrong.message, hint=wrong.hint, place=wrong.place)
        raise EOFError

    def _give(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            batch = next(batches, None)
        except Exception:
            # The maker of the batches has kept the error, which is raised when the query has ended.
            frames.send(self._link, frames.WRONG)
            return
        if batch is None:
            frames.send(self._link, frames.END)
        else:
            frames.send(self._link, frames.GIVE, batch.serialize())

    def _ending(self) -> errors.Error:
        """The error for a process that has ended without an answer."""
        if self._killed:
            return errors.OperationalError("the query was cancelled")
        try:
            told = self.ended.result(_ENDED_S)
        except TimeoutError:
            told = frames.Ended(self.number)
        if told.memory:
            return errors.TooLarge(
                "the query needed more memory than one query may use", hint="ask for less at a time"
            )
        if told.disk:
            return errors.TooLarge(
                "the disk has no room for the query's files", hint="ask for less at a time"
            )
        if told.signal == signal.SIGALRM:
            return errors.OperationalError(
                "the query reached its time limit", hint="ask for less at a time"
            )
        if told.signal == signal.SIGKILL:
            return errors.OperationalError(
                "the query's process was killed by the system",
                hint="the machine may have no memory left; try again",
            )
        if not told.signal:
            return errors.OperationalError(
                "the query's process did not start, or ended by itself", hint="try again"
            )
        return errors.InternalError(
            f"the query's process ended (signal {told.signal})", hint="rewrite the statement"
        )


def _copied(made: Any) -> Pages:
    """A small table without sharing."""
    table = made if isinstance(made, pa.Table) else pa.table(made)
    batches = tuple(_body(batch) for batch in table.to_batches())
    return Pages(_schema(table.schema), (), batches)


def _schema(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


def _body(batch: pa.RecordBatch) -> bytes:
    return batch.serialize().to_pybytes()  # type: ignore[no-any-return]
