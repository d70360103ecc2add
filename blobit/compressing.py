"""Entries of the kind zstd: each a frame of its own, so that a range reads only what it needs.

Invariants:
- A frame that does not say its size, or another one than the id gives, is refused before anything
  is taken for what it may hold.
- What is long enough to be felt is compressed and decompressed away from the event loop, where
  there are workers.
"""

from collections.abc import Sequence
from typing import Final

from engine.limits import KIB
from engine.ports.workers import Workers

LEVEL: Final = 3
_INLINE_BYTES_MAX: Final = 64 * KIB


async def compress(entries: Sequence[bytes], workers: Workers | None) -> list[bytes]:
    """A frame for each entry."""
    if workers is None or sum(map(len, entries)) <= _INLINE_BYTES_MAX:
        return _compress(entries)
    return await workers.run(lambda: _compress(entries))


async def decompress(
    frames: Sequence[bytes], lengths: Sequence[int], workers: Workers | None
) -> list[bytes]:
    """What the frames hold. Raises `ValueError` for one that does not hold so many bytes."""
    if workers is None or sum(lengths) <= _INLINE_BYTES_MAX:
        return _decompress(frames, lengths)
    return await workers.run(lambda: _decompress(frames, lengths))


def _compress(entries: Sequence[bytes]) -> list[bytes]:
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
    return [compressor.compress(entry) for entry in entries]


def _decompress(frames: Sequence[bytes], lengths: Sequence[int]) -> list[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    bodies: list[bytes] = []
    try:
        for frame, length in zip(frames, lengths, strict=True):
            if zstandard.frame_content_size(frame) != length:
                raise ValueError(f"the frame does not say that it holds {length} bytes")
            bodies.append(decompressor.decompress(frame, max_output_size=length))
    except zstandard.ZstdError as error:
        raise ValueError(f"the frame cannot be decompressed: {error}") from error
    if [len(body) for body in bodies] != list(lengths):
        raise ValueError("a frame holds less than it says")
    return bodies
