"""A snapshot as entries of a ledger: written in slices, read back with every check.

    H  major u8, minor u8, msgpack of `ImageHeader`    first
    P  bytes                                           a frame's beginning; the next entry goes on
    R  bytes                                           a frame, or the rest of one
    F  msgpack of `ImageFooter`                        last

A frame is zstandard over a msgpack array of rows in order, 256 KiB of them before compression or
one larger row.

Invariants:
- An entry has at most 1 MiB: it must not keep the log's own entries waiting on the wire.
- Without its footer an image is not whole; the footer counts and hashes all rows.
- Between two slices of work the loop is free: a slice is some hundred rows, or one compression.
"""

from asyncio import Future, ensure_future, gather
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from engine.errors import CannotRead, FormatTooNew
from engine.limits import KIB, MIB
from engine.log.position import Position
from engine.ports.workers import Workers
from engine.state.contract import Row, Snapshot
from engine.state.digest import RowsDigest, packed_rows

if TYPE_CHECKING:
    from zstandard import ZstdCompressor

FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 1
ENTRY_BYTES_MAX: Final = MIB
FRAME_BYTES: Final = 256 * KIB
FRAME_BYTES_MAX: Final = 24 * MIB
"""A frame of one largest row is well under this; what claims more is damaged. 1.0 had 8 MiB."""

_HEADER, _PIECE, _ROWS, _FOOTER = b"H", b"P", b"R", b"F"
_SLICE_ROWS: Final = 500
_SLICE_BYTES_MIN: Final = 4 * KIB
_SLICE_BYTES_MAX: Final = 128 * KIB
_APPENDS_MAX: Final = 4
_LEVEL: Final = 1
_ARRAY: Final = Struct(">BI")
_ARRAY_32: Final = 0xDD

T = TypeVar("T")


class ImageHeader(msgspec.Struct, frozen=True):
    """What an image is of. `level`: that of the commands that made the state."""

    log_name: str
    position: Position
    epoch: int
    level: int


class ImageFooter(msgspec.Struct, frozen=True):
    """What an image holds. `size_bytes`: of keys and values; `entries`: without this one."""

    rows: int
    size_bytes: int
    entries: int
    digest: str


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(ImageHeader).decode
_decode_footer = msgspec.msgpack.Decoder(ImageFooter).decode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode


async def write_image(
    snapshot: Snapshot,
    header: ImageHeader,
    append: Callable[[bytes], Awaitable[object]],
    *,
    pause: Callable[[], Awaitable[None]],
    workers: Workers | None = None,
) -> ImageFooter:
    """Write a snapshot through `append`, in order; all of it is appended when this returns.

    `pause` is awaited between slices of some 2 ms. With `workers`, compression runs in a thread.
    Raises what `append` and the snapshot raise; then the image is not whole.
    """
    writer = _ImageWriter(append, workers)
    try:
        await writer.begin(header)
        above: bytes | None = None
        slice_bytes = _SLICE_BYTES_MIN
        while page := snapshot.page(above, slice_bytes):
            above = page[-1][0]
            slice_bytes = _next_slice_bytes(page)
            await writer.add(page)
            await pause()
        return await writer.end()
    finally:
        await writer.settle()


def _next_slice_bytes(page: list[Row]) -> int:
    """As many bytes as some hundred rows like these have."""
    row_bytes = sum(len(key) + len(value) for key, value in page) // len(page)
    return min(max(row_bytes * _SLICE_ROWS, _SLICE_BYTES_MIN), _SLICE_BYTES_MAX)


class _ImageWriter:
    """The entries of one image, as they are made."""

    def __init__(
        self, append: Callable[[bytes], Awaitable[object]], workers: Workers | None
    ) -> None:
        self._append = append
        self._workers = workers
        self._compress = _compressor().compress
        self._digest = RowsDigest()
        self._packed: list[memoryview] = []
        self._packed_bytes = 0
        self._packed_rows = 0
        self._rows = 0
        self._size_bytes = 0
        self._entries = 0
        self._appends: deque[Future[object]] = deque()

    async def begin(self, header: ImageHeader) -> None:
        """The first entry."""
        version = bytes([FORMAT_MAJOR, FORMAT_MINOR])
        await self._put(_HEADER + version + _encode(header))

    async def add(self, page: list[Row]) -> None:
        """The next rows."""
        packed = packed_rows(page)
        self._packed.append(packed)
        self._packed_bytes += len(packed)
        self._packed_rows += len(page)
        self._size_bytes += sum(len(key) + len(value) for key, value in page)
        if self._packed_bytes >= FRAME_BYTES:
            await self._end_frame()

    async def end(self) -> ImageFooter:
        """The last entry. All of them are appended when it returns."""
        if self._packed:
            await self._end_frame()
        footer = ImageFooter(self._rows, self._size_bytes, self._entries, self._digest.text())
        await self._put(_FOOTER + _encode(footer))
        while self._appends:
            await self._appends.popleft()
        return footer

    async def settle(self) -> None:
        """After a failure: wait for what is under way, whatever comes of it."""
        await gather(*self._appends, return_exceptions=True)

    async def _end_frame(self) -> None:
        packed = b"".join(self._packed)
        array = _ARRAY.pack(_ARRAY_32, self._packed_rows) + packed

        def compress() -> bytes:
            self._digest.update(packed)
            return self._compress(array)

        frame = await _run(self._workers, compress)
        self._rows += self._packed_rows
        self._packed.clear()
        self._packed_bytes = self._packed_rows = 0
        start, piece_bytes = 0, ENTRY_BYTES_MAX - 1
        while len(frame) - start > piece_bytes:
            await self._put(_PIECE + frame[start : start + piece_bytes])
            start += piece_bytes
        await self._put(_ROWS + frame[start:])

    async def _put(self, entry: bytes) -> None:
        assert len(entry) <= ENTRY_BYTES_MAX
        if len(self._appends) == _APPENDS_MAX:
            await self._appends.popleft()
        self._appends.append(ensure_future(self._append(entry)))
        self._entries += 1


async def read_image(
    entries: AsyncIterator[bytes], *, workers: Workers | None = None
) -> AsyncIterator[list[Row]]:
    """The rows of an image, in order. Rows that came before an error are not to be used.

    With `workers`, decompression runs in a thread. Raises `CannotRead` for an image that is
    damaged or not whole, `FormatTooNew`, and what reading the entries raises.
    """
    reader = _ImageReader(workers)
    async for entry in entries:
        rows = await reader.take(entry)
        if rows:
            yield rows
    reader.end()


def read_header(entry: bytes) -> ImageHeader:
    """What the first entry of an image says. Raises `CannotRead`, `FormatTooNew`."""
    if entry[:1] != _HEADER or len(entry) < 3:
        raise CannotRead("the first entry of an image is no header")
    if entry[1] > FORMAT_MAJOR:
        raise FormatTooNew.of("the image of a state", entry[1], FORMAT_MAJOR)
    try:
        return _decode_header(memoryview(entry)[3:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise CannotRead(f"the header of an image is damaged: {error}") from error


class _ImageReader:
    """What has been read of one image."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers = workers
        self._digest = RowsDigest()
        self._entries = 0
        self._rows = 0
        self._size_bytes = 0
        self._pieces: list[bytes] = []
        self._last_key = b""
        self._whole = False

    async def take(self, entry: bytes) -> list[Row]:
        """The next entry, and the rows that it completes."""
        if self._whole:
            raise CannotRead("an image goes on after its footer")
        kind = entry[:1]
        rows: list[Row] = []
        if self._entries == 0:
            read_header(entry)
        elif kind == _PIECE:
            self._pieces.append(entry[1:])
            if sum(map(len, self._pieces)) > FRAME_BYTES_MAX:
                raise CannotRead(f"entry {self._entries} of an image: a frame is too long")
        elif kind == _ROWS:
            frame = b"".join([*self._pieces, entry[1:]])
            self._pieces.clear()
            rows = await _run(self._workers, lambda: self._unpacked(frame))
        elif kind == _FOOTER:
            self._check(entry)
        else:
            raise CannotRead(f"entry {self._entries} of an image is of no known kind: {kind!r}")
        self._entries += 1
        return rows

    def end(self) -> None:
        """There are no more entries."""
        if not self._whole:
            raise CannotRead(f"an image ends after {self._entries} entries, without a footer")

    def _unpacked(self, frame: bytes) -> list[Row]:
        """Perhaps in a thread, one frame at a time."""
        import zstandard

        try:
            # The frame says how long it gets: memory is never given to a damaged one.
            if not 0 < zstandard.frame_content_size(frame) <= FRAME_BYTES_MAX:
                raise CannotRead(f"entry {self._entries} of an image: a frame is too long")
            array = zstandard.ZstdDecompressor().decompress(frame)
            rows = _decode_rows(array)
        except (zstandard.ZstdError, msgspec.MsgspecError) as error:
            raise CannotRead(f"entry {self._entries} of an image: {error}") from error
        if not rows or rows[0][0] <= self._last_key:
            raise CannotRead(f"entry {self._entries} of an image: its rows are out of order")
        self._last_key = rows[-1][0]
        self._digest.update(memoryview(array)[_ARRAY.size :])
        self._rows += len(rows)
        self._size_bytes += sum(len(key) + len(value) for key, value in rows)
        return rows

    def _check(self, entry: bytes) -> None:
        try:
            footer = _decode_footer(memoryview(entry)[1:])
        except (msgspec.MsgspecError, ValueError) as error:
            raise CannotRead(f"the footer of an image is damaged: {error}") from error
        found = ImageFooter(self._rows, self._size_bytes, self._entries, self._digest.text())
        if found != footer or self._pieces:
            raise CannotRead(f"an image holds {found}, its footer says {footer}")
        self._whole = True


def _compressor() -> "ZstdCompressor":
    # Loaded on first use: who takes no snapshots needs no compression.
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)


async def _run(workers: Workers | None, work: Callable[[], T]) -> T:
    return work() if workers is None else await workers.run(work)
