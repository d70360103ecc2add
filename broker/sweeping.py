"""Payloads that nobody names any more are forgotten.

A payload is stored before its task is submitted, a result before its task ends: so what is young is
left alone. Of the rest goes what no task and no schedule names: tasks are purged when their
retention is over, and submits may fail.

Invariants:
- What a task or a schedule names is never forgotten, however old it is.
- Only who leads sweeps: he alone knows what is named.
"""

import asyncio
import logging
from typing import Final

from broker.errors import BrokerError
from broker.ports import PayloadStore
from broker.reading import TaskFilter
from broker.service import Broker

YOUNG_MS: Final = 24 * 3_600_000
"""So long a payload may lie before the task that names it is there."""
EVERY_MS: Final = 3_600_000
_PAGE_TASKS: Final = 1_000
_DELETE_MAX: Final = 1_000
_logger = logging.getLogger(__name__)


async def sweep(broker: Broker, store: PayloadStore, young_ms: int = YOUNG_MS) -> int:
    """Forget what is older than `young_ms` and named by nobody; how many payloads that were.

    Raises `NotLeader`, `BrokerUnavailable`.
    """
    unnamed = {payload_id async for payload_id in store.older_than(young_ms)}
    if not unnamed:
        return 0
    # Before the tasks: what a schedule names its tasks name, too, once it is gone.
    for schedule in await broker.schedules():
        unnamed.discard(schedule.spec.payload_object)
    above: int | None = 0
    while above is not None:
        # In the order of ids, whatever state they are in: none is passed over by changing it.
        page = await broker.tasks(TaskFilter(), above, _PAGE_TASKS)
        for task in page.tasks:
            unnamed.difference_update((task.payload_object, task.result_object))
        above = page.above
        await asyncio.sleep(0)
    found = sorted(unnamed)
    for start in range(0, len(found), _DELETE_MAX):
        await store.delete(found[start : start + _DELETE_MAX])
    return len(found)


async def keep_swept(broker: Broker, store: PayloadStore) -> None:
    """Sweep every hour where this broker leads, until cancelled."""
    while True:
        await asyncio.sleep(EVERY_MS / 1000)
        if not broker.serving:
            continue
        try:
            count = await sweep(broker, store)
            if count:
                _logger.info("%d payloads that no task names any more are forgotten", count)
        except BrokerError as error:
            _logger.warning("payloads could not be swept: %s", error)
