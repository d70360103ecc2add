"""Tasks of one batch that are alike in all but id and payload: most batches are of such ones.

Their rows differ in two places. What is around those is encoded once.

Invariants:
- A row made here is, byte for byte, the one that encoding the whole task would make.
- Whoever listens hears of them after the tasks before them and before the tasks after them.
"""

from typing import Final

import msgspec

from broker.applying import Step, TasksCame
from broker.keys import ACTIVE, numbered
from broker.task import Status, Task, encode

_PAYLOAD: Final = Task.__struct_fields__.index("payload")


class AlikeTasks:
    """Consecutive tasks that wait from now on. Given one of them; its id and payload are not."""

    __slots__ = ("_count", "_first", "_head", "_middle", "_payload_bytes", "_tail", "_task")

    def __init__(self, task: Task) -> None:
        assert task.status is Status.WAITING and not task.payload_bytes
        values = msgspec.structs.astuple(task)
        self._task = task
        self._head = _header(len(values))
        self._middle = _joined(values[1:_PAYLOAD])
        self._tail = _joined(values[_PAYLOAD + 1 :])
        self._first = self._count = self._payload_bytes = 0

    def put(self, step: Step, task_id: int, payload: bytes) -> None:
        """Write the next one."""
        if not self._count:
            self._first = task_id
        assert task_id == self._first + self._count
        self._count += 1
        self._payload_bytes += len(payload)
        row = (self._head, encode(task_id), self._middle, encode(payload), self._tail)
        step.put(numbered(ACTIVE, task_id), b"".join(row))

    def tell(self, step: Step) -> None:
        """All are written: tell who listens."""
        if self._count:
            ids = range(self._first, self._first + self._count)
            step.changed(TasksCame(self._task, ids, self._payload_bytes))


def _joined(values: tuple[object, ...]) -> bytes:
    """Values as they stand within an array."""
    return encode(values)[len(_header(len(values))) :]


def _header(count: int) -> bytes:
    """What an array of so many values begins with."""
    return bytes((0x90 + count,)) if count < 16 else b"\xdc" + count.to_bytes(2)
