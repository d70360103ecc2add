"""What runs tasks: functions, the processes they run in, and the link to the broker."""

from broker.task import Backoff
from broker.worker.registry import (
    GiveUp,
    Registry,
    TaskContext,
    TaskFunction,
    TaskOptions,
    TryLater,
    task,
)

__all__ = [
    "Backoff",
    "GiveUp",
    "Registry",
    "TaskContext",
    "TaskFunction",
    "TaskOptions",
    "TryLater",
    "task",
]
