"""One process that streams an object in and out of a store; it prints what memory that took.

usage: python -m tests.blobit.data.streaming_child FOLDER MIB [COMPRESSION]

Prints one JSON object: `idle_kib`, the resident set after a small object went in and out, and
`grown_kib`, by how much its peak grew over that.
"""

import asyncio
import json
import random
import sys
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path

from blobit import AsyncBlobs
from blobit.reading import Readers
from blobit.sources import put_source
from blobit.streaming import stream_span
from blobit.writers import LedgerPlan, LedgerPools
from engine import cluster
from engine.limits import MIB

_PATTERN_BYTES = 3 * MIB + 17


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0])


class Stream:
    """A stream of so many bytes, none of them twice in memory, and the checksum of what it gave."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._pattern = random.Random(7).randbytes(_PATTERN_BYTES)
        self.checksum = 0

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes, in pieces that fit nothing."""
        left_bytes = self._length
        while left_bytes:
            piece = self._pattern[: min(left_bytes, 700_001)]
            left_bytes -= len(piece)
            self.checksum = zlib.crc32(piece, self.checksum)
            yield piece
            await asyncio.sleep(0)


async def _run(folder: Path, length: int, compression: str) -> dict[str, int]:
    async with cluster.open(folder) as client, AsyncBlobs(client) as blobs:
        assert await blobs.get(await blobs.put(bytes(100_000))) == bytes(100_000)
        idle_kib = _status("VmRSS")
        pools = LedgerPools(client, blobs.settings)
        pool = pools.pool(LedgerPlan(compression=compression))
        readers = Readers(client, blobs.settings.readers_max)
        stream = Stream(length)
        object_id = await put_source(pool, stream.pieces())
        assert object_id.length == length
        checksum = got = 0
        ahead_bytes = blobs.settings.read_ahead_bytes
        async for piece in stream_span(readers, object_id, 0, None, ahead_bytes):
            checksum = zlib.crc32(piece, checksum)
            got += len(piece)
        assert (got, checksum) == (length, stream.checksum)
        await pools.close()
    return {"idle_kib": idle_kib, "grown_kib": _status("VmHWM") - idle_kib}


if __name__ == "__main__":
    chosen = sys.argv[3] if len(sys.argv) > 3 else ""
    print(json.dumps(asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2]) * MIB, chosen))))
