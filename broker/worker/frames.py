"""What a worker and its child processes say over the socket between them.

A frame is four bytes of length and one message in MessagePack. One frame carries all that gathered
since the one before: the length of a batch decides what a task costs.

Invariants:
- The worker speaks first, `Start`; the child answers `Ready` or `Broken` before anything else.
- A frame is decoded whole or the child is taken for broken.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from broker.connection import Attempt, Completion, Run
from broker.errors import SessionLost
from broker.task import PAYLOAD_BYTES_MAX

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_LENGTH: Final = struct.Struct(">I")


class Start(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What the child is to be. `main` is the program that registered functions itself.

    `at_once` tasks run at the same time, what comes beyond that waits. `archives` are put before
    its path; `any_function`: tasks may name what they call.
    """

    modules: tuple[str, ...]
    path: tuple[str, ...]
    at_once: int
    main: str = ""
    archives: tuple[str, ...] = ()
    any_function: bool = False
    result_bytes_max: int = PAYLOAD_BYTES_MAX


class Work(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Attempts to run. When one begins, the byte of its mark is set in the shared memory."""

    runs: list[Run]
    marks: list[int]


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Cancel these, as far as they are coroutines or have not begun."""

    attempts: list[Attempt]


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Begin nothing that has not begun; it is completed as handed back."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The child knows these types; coroutines can be cancelled without the end of the process."""

    types: tuple[str, ...]
    coroutines: tuple[str, ...]


class Broken(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The child cannot import what it should; it ends."""

    error: str


class Report(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """What began, of that which has a time limit, and what ended."""

    begun: list[Attempt]
    completions: list[Completion]


ToChild = Start | Work | Cancel | GiveBack
FromChild = Ready | Broken | Report

_encode: Final = msgspec.msgpack.Encoder().encode
decode_to_child: Final = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child: Final = msgspec.msgpack.Decoder(FromChild).decode


def frame(message: Any) -> bytes:
    """The bytes of a message on the socket."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts frames together from what came over a socket."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are whole now. Raises `SessionLost` for a length that cannot be."""
        buffer = self._buffer
        buffer += data
        offset = 0
        while len(buffer) - offset >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, offset)
            if size > FRAME_BYTES_MAX:
                raise SessionLost("a child process sends what cannot be read")
            end = offset + _LENGTH.size + size
            if end > len(buffer):
                break
            yield bytes(memoryview(buffer)[offset + _LENGTH.size : end])
            offset = end
        if offset:
            del buffer[:offset]
