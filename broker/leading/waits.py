"""Callers that wait for the end of a task.

Invariants:
- Only tasks with a waiting caller have a future. All others cost nothing here.
- A caller that gives up leaves nothing behind. When the term ends, all waits end with an error.
"""

import asyncio

from broker.errors import BrokerError
from broker.task import Task


class Waits:
    """The waits of one term."""

    def __init__(self) -> None:
        self._futures: dict[int, dict[asyncio.Future[Task], None]] = {}
        self._over: BrokerError | None = None

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, task_id: int) -> bool:
        return task_id in self._futures

    async def until_final(self, task_id: int) -> Task:
        """Wait for the end of a task that runs. Raises `BrokerError` when the term ends."""
        if self._over is not None:
            raise self._over
        future: asyncio.Future[Task] = asyncio.get_running_loop().create_future()
        futures = self._futures.setdefault(task_id, {})
        futures[future] = None
        try:
            return await future
        finally:
            futures.pop(future, None)
            if not futures and self._futures.get(task_id) is futures:
                del self._futures[task_id]

    def ended(self, task: Task) -> None:
        """A task has ended: end the waits for it."""
        futures = self._futures.pop(task.id, None)
        if futures is not None:
            for future in futures:
                if not future.done():
                    future.set_result(task)

    def gone(self, task_id: int, error: BrokerError) -> None:
        """A task was removed: end the waits for it with an error."""
        for future in self._futures.pop(task_id, ()):
            if not future.done():
                future.set_exception(error)

    def end(self, error: BrokerError) -> None:
        """The term is over."""
        self._over = error
        for task_id in list(self._futures):
            self.gone(task_id, error)
