"""Big payloads and results of tasks, as objects of one bucket.

Invariants:
- The bucket is made with the first of them; a program without any never has it.
- Names are drawn: nobody who submits bytes of his own can name another one's.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from blobit import AsyncBlobs
from blobit import errors as blob
from blobit.bucket import AsyncBucket
from blobit.errors import BlobError, BlobNotFound, NoSuchBucket
from broker.errors import AccessDenied, BrokerUnavailable, PayloadMissing
from engine.errors import EngineError
from herd import errors as herd
from herd.errors import Error
from herdbook.blob_store import open_blobs

BUCKET: Final = "herdbook-tasks"


class BucketPayloads:
    """A `PayloadStore` in a store's own bucket."""

    def __init__(self, blobs: AsyncBlobs, rng: random.Random) -> None:
        self._blobs = blobs
        self._rng = rng
        self._bucket: AsyncBucket | None = None

    async def put(self, data: bytes) -> str:
        """See `PayloadStore`."""
        name = f"{self._rng.getrandbits(128):032x}"
        with _translating():
            if self._bucket is None:
                self._bucket = await self._blobs.create_bucket(BUCKET, exist_ok=True)
            await self._bucket.put(name, data)
        return name

    async def get(self, payload_id: str) -> bytes:
        """See `PayloadStore`."""
        with _translating():
            return await (await self._found()).get(payload_id)

    async def older_than(self, age_ms: int) -> AsyncIterator[str]:
        """See `PayloadStore`."""
        before_ms = self._blobs.client.clock.wall_ms() - age_ms
        with _translating():
            try:
                bucket = await self._found()
            except NoSuchBucket:
                return
            async for info in bucket.scan():
                if info.created_ms < before_ms:
                    yield info.name

    async def delete(self, payload_ids: Sequence[str]) -> None:
        """See `PayloadStore`."""
        with _translating():
            await (await self._found()).delete_many(payload_ids)

    async def _found(self) -> AsyncBucket:
        if self._bucket is None:
            self._bucket = await self._blobs.bucket(BUCKET)
        return self._bucket


class OpenedPayloads:
    """The same of a store that is opened when the first of them is wanted; a context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = asyncio.Lock()
        self._opened: BucketPayloads | None = None
        self._held = AsyncExitStack()

    async def put(self, data: bytes) -> str:
        """See `PayloadStore`."""
        return await (await self._store()).put(data)

    async def get(self, payload_id: str) -> bytes:
        """See `PayloadStore`."""
        return await (await self._store()).get(payload_id)

    async def older_than(self, age_ms: int) -> AsyncIterator[str]:
        """See `PayloadStore`."""
        async for payload_id in (await self._store()).older_than(age_ms):
            yield payload_id

    async def delete(self, payload_ids: Sequence[str]) -> None:
        """See `PayloadStore`."""
        await (await self._store()).delete(payload_ids)

    async def __aenter__(self) -> "OpenedPayloads":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._held.aclose()

    async def _store(self) -> BucketPayloads:
        async with self._opening:
            if self._opened is None:
                with _translating():
                    blobs = await self._held.enter_async_context(open_blobs(self._url))
                self._opened = BucketPayloads(blobs, blobs.client.rng)
            return self._opened


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except BlobNotFound as error:
        raise PayloadMissing(f"the payload is not there any more: {error}") from error
    except (blob.AccessDenied, herd.AccessDenied) as error:
        raise AccessDenied(f"big payloads and results are for administrators: {error}") from error
    except (BlobError, EngineError, Error) as error:
        raise BrokerUnavailable(f"payloads cannot be reached: {error}") from error
