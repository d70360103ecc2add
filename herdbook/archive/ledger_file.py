"""One ledger's entries in a file.

    H  ledger u64                                          the first frame
    R  first u64, count u32, lengths u32 each, bodies      entries, one behind the other
    Z  the same as one Zstandard frame that tells its size
    E  last entry i64, length u64                          the end

Invariants:
- Entries begin at 0 and have no gap; the end says how many bytes they have together.
- A block is compressed where that saves a tenth of it.
- Reading holds one block: about a read's bytes, or one larger entry.
"""

import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

from engine.errors import CannotRead
from engine.limits import ENTRY_BYTES_MAX, READ_BYTES_MAX
from engine.run import NO_ENTRY
from herdbook.archive.framing import END, FrameWriter, read_frames, read_last

MAGIC: Final = b"HERDLGR"
FORMAT_MAJOR: Final = 1
_ID: Final = struct.Struct(">Q")
_BLOCK: Final = struct.Struct(">QI")
_END: Final = struct.Struct(">qQ")
_HEAD, _RAW, _ZSTD = b"H", b"R", b"Z"
_LEVEL: Final = 1
_SAVED_MIN: Final = 0.1
_BLOCK_BYTES_MAX: Final = 16 * (READ_BYTES_MAX + ENTRY_BYTES_MAX)


class LedgerFileWriter:
    """Writes a ledger's file; a context manager. Blocks."""

    def __init__(self, path: Path, ledger_id: int) -> None:
        from zstandard import ZstdCompressor

        self._compressor = ZstdCompressor(level=_LEVEL)
        self._frames = FrameWriter(path, MAGIC, FORMAT_MAJOR)
        self._ledger_id = ledger_id
        self.last = NO_ENTRY
        """The last entry so far."""
        self.length = 0
        """The bytes of all entries so far."""

    @property
    def size_bytes(self) -> int:
        """What the file takes."""
        return self._frames.size_bytes

    def __enter__(self) -> "LedgerFileWriter":
        self._frames.__enter__()
        self._frames.frame(_HEAD, _ID.pack(self._ledger_id))
        return self

    def add(self, bodies: Sequence[bytes]) -> None:
        """Write the entries that follow."""
        lengths = list(map(len, bodies))
        head = _BLOCK.pack(self.last + 1, len(bodies)) + struct.pack(f">{len(bodies)}I", *lengths)
        block = b"".join((head, *bodies))
        packed = self._compressor.compress(block)
        if len(packed) <= len(block) * (1 - _SAVED_MIN):
            self._frames.frame(_ZSTD, packed)
        else:
            self._frames.frame(_RAW, block)
        self.last += len(bodies)
        self.length += sum(lengths)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._frames.frame(END, _END.pack(self.last, self.length))
        self._frames.__exit__(kind, error, trace)


def read_blocks(
    path: Path, ledger_id: int, last: int, length: int | None = None
) -> Generator[list[bytes], None, None]:
    """A ledger's entries, some at a time, checked to be all of those wanted. Blocks.

    `close()` closes the file. Raises `CannotRead`, `FormatTooNew`, `OSError`.
    """
    with closing(read_frames(path, MAGIC, FORMAT_MAJOR)) as frames:
        yield from _blocks_of(path, frames, ledger_id, last, length)


def _blocks_of(
    path: Path,
    frames: Iterator[tuple[bytes, bytes]],
    ledger_id: int,
    last: int,
    length: int | None,
) -> Iterator[list[bytes]]:
    seen, seen_bytes = NO_ENTRY, 0
    for number, (kind, blob) in enumerate(frames):
        if (number == 0) != (kind == _HEAD):
            raise CannotRead(f"{path} is damaged: its frames are in no order")
        if kind == _HEAD:
            if blob != _ID.pack(ledger_id):
                raise CannotRead(f"{path} holds another ledger than {ledger_id}")
        elif kind == END:
            wanted = (last, seen_bytes if length is None else length)
            if _END.unpack(blob) != (seen, seen_bytes) or (seen, seen_bytes) != wanted:
                raise CannotRead(
                    f"{path} ends at entry {seen} with {seen_bytes} bytes, "
                    f"and should at {wanted[0]} with {wanted[1]}"
                )
        else:
            bodies = _bodies(kind, blob, seen + 1, path)
            seen += len(bodies)
            seen_bytes += sum(map(len, bodies))
            yield bodies


def check_end(path: Path, last: int, length: int) -> None:
    """Whether a file ends as it should, by its last frame alone. Blocks.

    Raises `CannotRead`, `OSError`.
    """
    if read_last(path, _END.size) != _END.pack(last, length):
        raise CannotRead(f"{path} ends elsewhere than at entry {last} with {length} bytes")


def _bodies(kind: bytes, blob: bytes, first: int, path: Path) -> list[bytes]:
    block = _unpacked(blob, path) if kind == _ZSTD else blob
    if kind not in (_RAW, _ZSTD) or len(block) < _BLOCK.size:
        raise CannotRead(f"{path} is damaged: it has a frame that cannot be there")
    found, count = _BLOCK.unpack_from(block)
    start = _BLOCK.size + 4 * count
    if found != first or count == 0 or len(block) < start:
        raise CannotRead(f"{path} is damaged: entry {first} does not follow")
    lengths = struct.unpack_from(f">{count}I", block, _BLOCK.size)
    ends = list(accumulate(lengths, initial=start))
    if ends[-1] != len(block):
        raise CannotRead(f"{path} is damaged: a block has another size than its entries")
    return [block[begin:end] for begin, end in pairwise(ends)]


def _unpacked(blob: bytes, path: Path) -> bytes:
    from zstandard import ZstdDecompressor, ZstdError, frame_content_size

    try:
        if not 0 <= frame_content_size(blob) <= _BLOCK_BYTES_MAX:
            raise CannotRead(f"{path} is damaged: a block does not tell its size")
        return ZstdDecompressor().decompress(blob)
    except ZstdError as error:
        raise CannotRead(f"{path} is damaged: {error}") from error
