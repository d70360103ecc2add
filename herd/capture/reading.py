"""Reading a stretch of a tablespace's log: from the bookies, into Arrow batches.

Invariants:
- All of a stretch is told or an error is raised; nothing after it is told.
- At most two reads of the log and one batch of rows are in hands.
"""

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from engine.errors import EngineError, PositionTruncated
from engine.log import ReplicatedLog
from engine.log.log_reader import Batch
from engine.place import HeldClient
from herd.capture.interest import Interest
from herd.capture.shape import shape_of
from herd.capture.survey import Stretch, begin_again
from herd.checkpoint.record import CheckpointList
from herd.commands import Write
from herd.reading_log import CommandReader, log_of
from herd.translating import translated

BATCH_ROWS: Final = 16_384
"""A batch is told when it has so many rows, and at the end; a transaction is in one batch."""


def read_stretch(
    held: HeldClient, tablespace: str, interest: Interest, stretch: Stretch
) -> Iterator[pa.RecordBatch]:
    """What the transactions of a stretch changed, in their order. Blocks while iterating.

    Raises `StorageFailed` for a log that cannot be read or is kept no more, and what its shape
    raises.
    """
    shape, commands = shape_of(interest, stretch.tables), CommandReader()
    log = ReplicatedLog(held.client, log_of(tablespace))
    reading = log.read(stretch.after, stretch.last)
    try:
        while (batch := held.run(partial(_next, reading))) is not None:
            for position, command in commands.take(batch):
                if type(command) is Write:
                    shape.take(position, command)
                    if shape.rows >= BATCH_ROWS:
                        yield shape.batch()
        if shape.rows:
            yield shape.batch()
    except PositionTruncated as error:
        checkpoints = CheckpointList(held.client.store, tablespace, held.client.time)
        told = held.run(partial(begin_again, checkpoints, tablespace, error))
        raise told from error
    except EngineError as error:
        raise translated(error) from error
    finally:
        held.run(reading.aclose)


async def _next(reading: AsyncGenerator[Batch, None]) -> Batch | None:
    return await anext(reading, None)
