"""The blob store for code without an event loop: a thin face over `AsyncBlobs`.

Invariants:
- A call makes one hop to the process's background loop; a source that is no bytes is read in the
  caller's own thread, one hop a piece.
- A call on the loop's own thread, or in a forked child, raises `BlobsClosed`; it never hangs.
- An interrupted wait abandons the wait.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from blobit.blobs import AsyncBlobs
from blobit.errors import BlobsClosed
from blobit.object_id import ObjectId
from blobit.sources import FILE_READ_BYTES, ReadableFile
from engine.errors import InvalidRequest
from engine.ports.system_loop import BackgroundLoop

R = TypeVar("R")

SyncSource = bytes | bytearray | memoryview | Iterable[bytes] | ReadableFile
"""What can be put: bytes, pieces of bytes that come one by one, or an open binary file."""

_END: Final = b""


class Blobs:
    """Objects by id. Any number of threads may use one at the same time."""

    def __init__(self, blobs: AsyncBlobs, loop: BackgroundLoop) -> None:
        """`blobs` was made on `loop`, and only this object closes it."""
        self._blobs = blobs
        self._loop = loop

    def put(self, source: SyncSource) -> ObjectId:
        """Store an object and return its id, once it is durable.

        Raises `BlobNotStored`, `BlobsClosed`, and `TypeError` for what is no source of bytes.
        """
        if isinstance(source, bytes | bytearray | memoryview):
            data = bytes(source)
            return self._run(lambda: self._blobs.put(data))
        if isinstance(source, ReadableFile):
            file = source
            return self._put_pieces(iter(lambda: file.read(FILE_READ_BYTES), _END))
        other: object = source
        if isinstance(other, Iterable) and not isinstance(other, str):
            return self._put_pieces(iter(other))
        raise TypeError(f"{type(source).__name__} is no source of bytes")

    def get(self, object_id: ObjectId | str) -> bytes:
        """The whole object.

        Raises `InvalidObjectId`, `BlobNotFound`, `BlobUnreadable`, `BlobCorrupt`.
        """
        return self._run(lambda: self._blobs.get(object_id))

    def get_range(self, object_id: ObjectId | str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on. Raises `RangeInvalid`, and what `get` raises."""
        return self._run(lambda: self._blobs.get_range(object_id, offset, length))

    def stream(self, object_id: ObjectId | str) -> Iterator[bytes]:
        """The whole object in pieces of about a mebibyte, with some read ahead of the caller.

        Raises as `get` does, while iterating; a wrong checksum shows before the last piece comes.
        """
        return self._stream(self._blobs.stream(object_id))

    def close(self) -> None:
        """End pending puts and close the open ledgers. May be called twice."""
        self._run(self._blobs.close)

    def __enter__(self) -> "Blobs":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put_pieces(self, pieces: Iterator[bytes]) -> ObjectId:
        upload = self._blobs.upload()
        try:
            for piece in pieces:
                self._run(lambda piece=piece: upload.write(piece))  # type: ignore[misc]
            return self._run(upload.finish)
        except BaseException:
            self._run(upload.abort)
            raise

    def _stream(self, pieces: Any) -> Iterator[bytes]:
        async def following() -> bytes:
            return await anext(pieces, _END)

        try:
            while piece := self._run(following):
                yield piece
        finally:
            # An iterator thrown away in a wrong place ends without its source being closed.
            with suppress(BlobsClosed):
                self._run(pieces.aclose)

    def _run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        try:
            return self._loop.run(call)
        except InvalidRequest as error:
            raise BlobsClosed(str(error)) from error
