"""What putting and getting of many files share: batches, so many at once, what is told.

Invariants:
- At most `jobs` batches are under way, each of at most `BATCH_BYTES_MAX`, or of one big file.
- One file that fails is told and the others go on; what would fail for all of them ends it.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from blobit.errors import (
    BlobNotFound,
    BlobUnreadable,
    ConditionFailed,
    InvalidName,
    NoSuchBucket,
    ObjectChanged,
)
from engine.limits import MIB
from herdbook.cli.blob_folders import UnsafeName

if TYPE_CHECKING:
    from blobit import ObjectInfo

T = TypeVar("T")

BIG_BYTES: Final = 1 * MIB
BATCH_BYTES_MAX: Final = 4 * MIB
BATCH_ITEMS_MAX: Final = 64
TEMPORARY: Final = (
    OSError,
    InvalidName,
    UnsafeName,
    ConditionFailed,
    BlobNotFound,
    BlobUnreadable,
    ObjectChanged,
)
"""What is wrong with one object or file, and not with the others."""

Done = Literal["put", "got", "same", "failed", "left out"]


class Outcome(NamedTuple):
    """What became of one file. `name` is the object's, `path` the file's."""

    done: Done
    name: str
    path: str
    size_bytes: int
    info: "ObjectInfo | None" = None
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """The fields that say something."""
        told: dict[str, Any] = {
            "done": self.done,
            "name": self.name,
            "path": self.path,
            "bytes": self.size_bytes,
        }
        if self.info is not None:
            told |= {"etag": self.info.etag, "id": str(self.info.object_id)}
        return told | ({"error": self.error} if self.error else {})


class Moving(Protocol):
    """Who hears how many bytes were moved."""

    def moved(self, size_bytes: int) -> None:
        """So many bytes were moved. Called in any thread."""
        ...


class Telling(Moving, Protocol):
    """Who hears of what is going on."""

    def expect(self, size_bytes: int) -> None:
        """So many more bytes are to be moved."""
        ...

    def tell(self, outcome: Outcome) -> None:
        """One file is done with."""
        ...


class Bar:
    """A bar for bytes on standard error; nothing where nobody looks."""

    def __init__(self, what: str) -> None:
        console = Console(stderr=True)
        self._drawn = console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        self._progress = Progress(
            *columns,
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._drawn,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task(what, total=None)
        self._total_bytes = 0

    def expect(self, size_bytes: int) -> None:
        """So many more bytes are to be moved."""
        self._total_bytes += size_bytes
        if self._drawn:
            self._progress.update(self._task, total=self._total_bytes)

    def moved(self, size_bytes: int) -> None:
        """So many bytes were moved."""
        if self._drawn:
            self._progress.advance(self._task, size_bytes)

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Batches(AsyncIterator[list[T]]):
    """Small things together, big ones alone."""

    def __init__(self, things: AsyncIterable[T], size_of: Callable[[T], int]) -> None:
        self._things = aiter(things)
        self._size_of = size_of
        self._waiting: T | None = None
        self._ended = False

    async def __anext__(self) -> list[T]:
        batch: list[T] = []
        size_bytes = 0
        while len(batch) < BATCH_ITEMS_MAX and size_bytes < BATCH_BYTES_MAX:
            thing = await self._next()
            if thing is None:
                break
            size = self._size_of(thing)
            if batch and (size > BIG_BYTES or size_bytes + size > BATCH_BYTES_MAX):
                self._waiting = thing
                break
            batch.append(thing)
            size_bytes += size
            if size > BIG_BYTES:
                break
        if not batch:
            raise StopAsyncIteration
        return batch

    async def _next(self) -> T | None:
        if self._waiting is not None:
            thing, self._waiting = self._waiting, None
            return thing
        if self._ended:
            return None
        try:
            return await anext(self._things)
        except StopAsyncIteration:
            self._ended = True
            return None


async def each_of(things: Iterable[T]) -> AsyncIterator[T]:
    """An asynchronous iterator over what is there already."""
    for thing in things:
        yield thing


async def in_parallel(
    batches: AsyncIterator[T], work: Callable[[T], Awaitable[None]], jobs: int
) -> None:
    """Do the work with each, `jobs` at a time. The first error ends the others and is raised."""
    turn = asyncio.Lock()

    async def take() -> None:
        while True:
            async with turn:
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    return
            await work(batch)

    with first_error():
        async with asyncio.TaskGroup() as group:
            for _ in range(jobs):
                group.create_task(take())


@contextmanager
def first_error() -> Any:
    """The first error of a group, as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


def is_of_one(error: BaseException) -> bool:
    """Whether an error is one object's or file's alone."""
    return isinstance(error, TEMPORARY) and not isinstance(error, NoSuchBucket)


def told(error: BaseException) -> str:
    """An error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"
