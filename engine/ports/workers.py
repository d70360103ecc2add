"""Threads as an argument: work that must not run on the event loop.

A `Batcher` is one thread that takes all that is queued and hands it to a function as one batch;
while the function runs, the next batch gathers. It is how a journal groups its commits and an
index its writes. The event loop hears of each finished batch once, in order.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")
Job = TypeVar("Job", contravariant=True)
R = TypeVar("R")


class Batcher(Protocol[Job]):
    """Jobs in, batches out, in order."""

    def put(self, job: Job) -> None:
        """Queue a job. Called on the event loop; never blocks."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then end the thread. No `put` may follow."""
        ...


class Workers(Protocol):
    """Makes threads and runs functions in them."""

    def batcher(
        self,
        name: str,
        work: "Callable[[list[T]], R]",
        done: "Callable[[list[T], R | None, BaseException | None], None]",
        *,
        lone_ms: float = 0.0,
        begin: "Callable[[list[T]], None] | None" = None,
    ) -> Batcher[T]:
        """Start a batcher.

        `work(jobs)` runs in the thread; `done(jobs, result, error)` runs on the event loop
        afterwards, with the exception if `work` raised one. The thread goes on after an error:
        whether to stop is `done`'s and `work`'s decision.

        With `lone_ms` a job that is alone may be worked on the loop itself, which spares two hops
        between threads: while the latest ones were alone, too, and took no longer than that. Where
        several batchers do so in one turn, `begin(jobs)` is called for each before `work(jobs)` is
        for the first: what their disks are to do they do beside each other. It does not raise.
        """
        ...

    async def run(self, work: Callable[[], R]) -> R:
        """Run a function in a pool thread and wait for its result. For reads and scans."""
        ...
