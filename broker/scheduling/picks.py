"""What the scheduler hands out."""

import msgspec

from broker.scheduling.queues import QueueKey


class Pick(msgspec.Struct, frozen=True, gc=False):
    """A task that may begin on a worker: it holds a place there, and a unit of each resource.

    `since_ms` is since when it has waited; `group` and `resources` are those of this run.
    """

    id: int
    key: QueueKey
    group: int
    resources: tuple[str, ...]
    worker_id: str
    since_ms: int

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.key.tenant

    @property
    def type(self) -> str:
        """What it runs."""
        return self.key.type


class Hint(msgspec.Struct, frozen=True):
    """Something that an operator should know: tasks wait and no worker takes their kind."""

    type: str
    group: int
    tenant: str
    task_id: int
    text: str
