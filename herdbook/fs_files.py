"""The open files of the file system `blobit://`.

Invariants:
- An object appears when its file is closed, whole, or not at all: an error inside a `with` block,
  a file that is forgotten and a transaction that is given up leave nothing.
- A file being written holds at most `WRITE_BYTES` that are not on their way; one being appended to
  holds its bytes aside until it is closed.
"""

import io
import os
import tempfile
from typing import TYPE_CHECKING, Any, Final, Protocol

from blobit.errors import BlobsClosed
from blobit.file import BUFFER_BYTES, ObjectFile
from engine.limits import MIB

if TYPE_CHECKING:
    from blobit import ObjectInfo
    from herdbook.fs import BlobFileSystem

WRITE_BYTES: Final = 1 * MIB
SPOOLED_BYTES_MAX: Final = 8 * MIB


class Sink(Protocol):
    """Where the bytes of a file being written go."""

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        ...

    def finish(self) -> "ObjectInfo":
        """Make an object of all of them."""
        ...

    def abort(self) -> None:
        """Forget them. May be called twice, and after `finish`."""
        ...


class BlobReader(io.BufferedReader):
    """An object being read; with what fsspec's users ask a file for."""

    def __init__(self, fs: "BlobFileSystem", path: str, file: ObjectFile) -> None:
        super().__init__(file, BUFFER_BYTES)
        self.fs = fs
        self.path = path
        self.size = file.info.length
        self.etag = file.info.etag

    @property
    def details(self) -> dict[str, Any]:
        """What `fs.info` says of it."""
        details: dict[str, Any] = self.fs.info(self.path)
        return details

    @property
    def full_name(self) -> str:
        """Its url."""
        return f"blobit://{self.path}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.fs, self.path, 0 if self.closed else self.tell())


class BlobWriter(io.BufferedIOBase):
    """An object being written. It is there once `close`, or its transaction, has succeeded."""

    def __init__(self, path: str, sink: Sink, *, autocommit: bool = True) -> None:
        self.path = path
        self.info: ObjectInfo | None = None
        """The object, once it is there."""
        self.autocommit = autocommit
        self._sink = sink
        self._buffer = bytearray()
        self._position = 0
        self._ended = False

    @property
    def mode(self) -> str:
        """As files have it."""
        return "wb"

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        self._check_open()
        return self._position

    def write(self, data: Any, /) -> int:
        """Take all of it. Raises `BlobNotStored`."""
        self._check_open()
        with memoryview(data) as view:
            self._buffer += view.cast("B") if view.nbytes else b""
            size = view.nbytes
        self._position += size
        if len(self._buffer) >= WRITE_BYTES:
            self._send()
        return size

    def close(self) -> None:
        """Make the object, unless a transaction is to do that. Raises what a put raises."""
        if self.closed:
            return
        try:
            if not self._ended:
                self._send()
                if self.autocommit:
                    self.commit()
        except BaseException:
            self.discard()
            raise
        finally:
            super().close()

    def commit(self) -> None:
        """Make the object."""
        self._ended = True
        self.info = self._sink.finish()

    def discard(self) -> None:
        """Forget what was written: no object comes of it."""
        self._ended = True
        self._buffer.clear()
        self._sink.abort()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not self.closed:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # Closing would make an object of a part of the bytes.
        if not self._ended and not self.closed and self.autocommit:
            self.discard()

    def _send(self) -> None:
        if self._buffer:
            self._sink.write(bytes(self._buffer))
            self._buffer.clear()

    def _check_open(self) -> None:
        if self.closed or self._ended:
            raise ValueError("the file is closed")


class TextWriter(io.TextIOWrapper):
    """Text over a writer of bytes, that forgets the object as that does."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not self.closed:
            writer: Any = self.buffer
            writer.__exit__(kind, error, trace)
            return
        self.close()

    def __del__(self) -> None:
        # What was not closed is forgotten with the writer below, which knows what it has to do.
        return


class CompressedWriter(io.BufferedIOBase):
    """A compressor over a `BlobWriter`: both end together."""

    def __init__(self, compressor: Any, writer: BlobWriter) -> None:
        self._compressor = compressor
        self._writer = writer

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any, /) -> int:
        """Take all of it."""
        count: int = self._compressor.write(data)
        return count

    def close(self) -> None:
        """Make the object."""
        if self.closed:
            return
        try:
            self._compressor.close()
            self._writer.close()
        except BaseException:
            self.discard()
            raise
        super().close()

    def discard(self) -> None:
        """Forget the object."""
        if self.closed:
            return
        super().close()
        try:
            # What a compressor writes at its end goes with the rest.
            self._compressor.close()
        finally:
            if not self._writer.closed:
                self._writer.discard()
                self._writer.close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close() if kind is None else self.discard()

    def __del__(self) -> None:
        self.discard()


class UploadSink:
    """Bytes that go into the store as they come."""

    def __init__(self, fs: "BlobFileSystem", path: str, **options: Any) -> None:
        self._fs = fs
        self._process = os.getpid()
        self._upload = fs.begin_upload(path, **options)

    def write(self, data: bytes) -> None:
        """Take the next bytes. Raises `BlobsClosed` in a forked child."""
        self._check_process()
        self._fs.run(lambda _: self._upload.write(data))

    def finish(self) -> "ObjectInfo":
        """Make an object of all of them. Raises `BlobsClosed` in a forked child."""
        self._check_process()
        info: ObjectInfo = self._fs.run(lambda _: self._upload.finish())
        return info

    def abort(self) -> None:
        """Forget them. In a forked child that is not its business."""
        if self._process == os.getpid():
            self._fs.run(lambda _: self._upload.abort())

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise BlobsClosed("opened before a fork: open it again in this process")


class AppendSink:
    """Bytes that are held aside, and appended to an object at once."""

    def __init__(self, fs: "BlobFileSystem", path: str) -> None:
        self._fs = fs
        self._path = path
        self._file = tempfile.SpooledTemporaryFile(SPOOLED_BYTES_MAX)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._file.write(data)

    def finish(self) -> "ObjectInfo":
        """Append them."""
        self._file.seek(0)
        try:
            return self._fs.append(self._path, self._file)
        finally:
            self._file.close()

    def abort(self) -> None:
        """Forget them."""
        self._file.close()


def _reopened(fs: "BlobFileSystem", path: str, position: int) -> BlobReader:
    file: BlobReader = fs.open(path, "rb")
    file.seek(position)
    return file
