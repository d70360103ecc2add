"""Which waiting task begins next, on which worker: in memory, at who leads, without a clock."""

from broker.scheduling.hints import Hints
from broker.scheduling.index import Waiting
from broker.scheduling.mapping import UserMapping
from broker.scheduling.picks import Hint, Pick
from broker.scheduling.queues import QueueKey
from broker.scheduling.take import Scheduler

__all__ = ["Hint", "Hints", "Pick", "QueueKey", "Scheduler", "UserMapping", "Waiting"]
