"""What comes on the background loop, one after the other, for a thread that waits for it.

    with reader.tail() as entries:
        for entry in entries: ...

Invariants:
- Once it was stopped, nothing more comes; who waits meanwhile hears the end.
- An interrupted wait loses nothing: the next call goes on with what would have come.
- Nothing is fetched before somebody asks, and one that is forgotten ends by itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, Self, TypeVar

from engine.ports.system_loop import BackgroundLoop

T = TypeVar("T")
Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]
_endings: set[asyncio.Task[None]] = set()


class Following(Iterator[T], Generic[T]):
    """An iterator over what an asynchronous one gives, for one thread; another may stop it.

    Leaving its `with` block stops it, and so does forgetting it.
    """

    def __init__(
        self,
        batches: AsyncGenerator[Sequence[T], None],
        loop: BackgroundLoop,
        run: Run | None = None,
    ) -> None:
        """`batches` is read on `loop`; `run` is how a call gets there, if not by `loop.run`."""
        self._batches = batches
        self._loop = loop
        self._run = run or loop.run
        self._ready: Iterator[T] = iter(())
        self._coming: asyncio.Task[Sequence[T] | None] | None = None
        self._ended = False
        self._end = asyncio.Event()

    def __next__(self) -> T:
        """The next one, as soon as it is there; one hop for all that came together."""
        while not self._ended:
            for each in self._ready:
                return each
            self._run(self._wait)
            # Taken here, not on the loop: an interrupt may throw away what a call answers.
            coming, self._coming = self._coming, None
            batch = None if coming is None or self._end.is_set() else coming.result()
            if batch is None:
                break
            self._ready = iter(batch)
        self._ended = True
        raise StopIteration

    def stop(self) -> None:
        """End it, from whatever thread, without waiting. May be called twice."""
        if not self._ended:
            self._ended = True
            if self._loop.usable:
                self._loop.loop.call_soon_threadsafe(self._begin_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        self.stop()

    async def _wait(self) -> None:
        """Until more is there, or the end."""
        if self._end.is_set():
            return
        if self._coming is None:
            self._coming = asyncio.create_task(self._take())
        ended = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait((self._coming, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()

    async def _take(self) -> Sequence[T] | None:
        return await anext(self._batches, None)

    def _begin_end(self) -> None:
        """On the loop: let whoever waits go, then close what is read."""
        self._end.set()
        ending = asyncio.create_task(_close(self._batches, self._coming))
        # Of what was forgotten nobody else holds the end.
        _endings.add(ending)
        ending.add_done_callback(_endings.discard)


async def _close(batches: AsyncGenerator[Any, None], coming: asyncio.Task[Any] | None) -> None:
    if coming is not None:
        coming.cancel()
        await asyncio.wait([coming])
        # Nobody asks any more what became of it.
        coming.cancelled() or coming.exception()
    await batches.aclose()


async def singly(each: AsyncGenerator[T, None]) -> AsyncGenerator[Sequence[T], None]:
    """What comes one by one, for `Following`."""
    async with aclosing(each):
        async for one in each:
            yield (one,)
