"""Frames: how bytes of one connection are cut into messages, and how a connection begins.

A frame is a header of 28 bytes, a head and a body, all integers big-endian:

    offset  bytes  field
    0       4      size of the head
    4       4      size of the body
    8       1      kind (see `Kind`)
    9       1      flags (1: urgent, of an APPEND of a recovery); a reader ignores unknown ones
    10      2      target: the number that CONNECTED gave to a bookie, 0 for the connection itself
    12      8      request: chosen by the client, repeated in the answer; 0 wants no answer
    20      4      CRC32C of the head
    24      4      CRC32C of bytes 0 to 23
    28      ...    the head: what the message says (`engine.transport.messages`)
    ...     ...    the body: bodies of entries one behind the other, covered by their own digests

A connection begins with the client's HELLO and the server's WELCOME or REFUSED; where the server
has a shared secret, its CHALLENGE and the client's PROOF stand between them
(`engine.transport.greeting`). The head of HELLO and of WELCOME:

    0       8      the letters HERDBOOK
    8       2      major version of the wire format
    10      2      minor version
    12      ...    a MessagePack map of options; unknown ones are ignored

The head of REFUSED is a MessagePack array: an `ErrorCode`, a text. This header, HELLO and REFUSED
stay as they are in every later version, so that two versions can always tell each other apart.

Invariants:
- A frame over `FRAME_BYTES_MAX` is refused from its header on, before anything of it is kept.
- Whatever arrives, a reader either gives frames whose header and head are intact, or raises
  `FrameInvalid` once and is over.
- A reader keeps less than one frame and one piece of input.
- Before a connection is greeted its frames have at most `GREETING_BYTES_MAX`.
"""

import enum
import struct
from typing import Any, Final, NamedTuple

import google_crc32c
import msgspec

from engine.errors import FormatTooNew, FrameInvalid
from engine.limits import FRAME_BYTES_MAX

WIRE_MAJOR: Final = 1
WIRE_MINOR: Final = 3
PAGES_MINOR: Final = 3
"""From this minor version on, a metadata store can be asked for pages."""
CLOCK_MINOR: Final = 3
"""From this minor version on, clients can ask for the time of the metadata store's server."""
PING_MINOR: Final = 3
"""From this minor version on, a server of metadata answers a ping."""
MAGIC: Final = b"HERDBOOK"
HEADER_BYTES: Final = 28
GREETING_BYTES_MAX: Final = 4096
URGENT: Final = 1
TARGET_MAX: Final = 2**16 - 1
REQUEST_MAX: Final = 2**64 - 1

_FIELDS = struct.Struct(">IIBBHQI")
_CHECK = struct.Struct(">I")
_HEADER = struct.Struct(">IIBBHQII")
_GREETING = struct.Struct(">8sHH")
_crc = google_crc32c.value

assert _FIELDS.size + _CHECK.size == _HEADER.size == HEADER_BYTES
assert len(MAGIC) == 8


class Kind(enum.IntEnum):
    """What a frame is. Numbers are part of the wire format and never change meaning.

    Those from 128 on belong to services of other layers, each on connections of its own.
    """

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    ERROR = 4
    """The answer to a request that failed as a whole: an `ErrorCode` and a text. With request 0
    it is about the connection, which ends."""
    CHALLENGE = 5
    PROOF = 6

    CONNECT = 16
    CONNECTED = 17
    APPEND = 18
    APPEND_REPLIES = 19
    CONFIRM = 20
    RECORD = 21
    READ = 22
    READ_REPLY = 23
    FENCE = 24
    WAIT_LAC = 25
    LAC_REPLY = 26
    INFO = 27
    INFO_REPLY = 28
    GONE = 29
    """From the server: the target's bookie has stopped, and its number is not used again."""

    METADATA = 48
    METADATA_REPLY = 49
    WATCH = 50
    UNWATCH = 51
    CHANGED = 52

    CONTROL = 64
    CONTROL_REPLY = 65


class ErrorCode(enum.IntEnum):
    """Why a connection or a request was refused. Part of the wire format."""

    UNAVAILABLE = 1
    FORMAT_TOO_NEW = 2
    INVALID_REQUEST = 3
    KEY_EXISTS = 4
    VERSION_CONFLICT = 5
    NOT_THIS_FOLDER = 6
    FRAME_INVALID = 7
    OVERLOADED = 8
    ACCESS_REFUSED = 9


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One message as it came off the wire. `body` is a view that lives as long as it is held."""

    kind: int
    target: int
    request: int
    head: bytes
    body: memoryview


def frame_header(
    kind: int, target: int, request: int, head: bytes, body_bytes: int = 0, flags: int = 0
) -> bytes:
    """The 28 bytes in front of a head and a body of `body_bytes`.

    >>> len(frame_header(Kind.INFO, 1, 7, b""))
    28
    """
    assert 0 <= target <= TARGET_MAX and 0 <= request <= REQUEST_MAX
    assert HEADER_BYTES + len(head) + body_bytes <= FRAME_BYTES_MAX, (kind, len(head), body_bytes)
    fields = _FIELDS.pack(len(head), body_bytes, kind, flags, target, request, _crc(head))
    return fields + _CHECK.pack(_crc(fields))


class FrameReader:
    """Pieces of a connection's bytes in, frames out.

    >>> reader = FrameReader()
    >>> data = frame_header(Kind.INFO, 1, 7, b"ab") + b"ab"
    >>> reader.feed(data[:20]), [frame.head for frame in reader.feed(data[20:])]
    ([], [b'ab'])

    `partial` tells whether more bytes have come than whole frames.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.partial = False
        self._kept = bytearray()
        self._needed = HEADER_BYTES
        self._over = False

    @property
    def awaited_bytes(self) -> int:
        """The size of the frame of which a part has come, 0 while its header is not whole."""
        return self._needed if self._needed > HEADER_BYTES and self._kept else 0

    @property
    def awaits_urgent(self) -> bool:
        """Whether the frame of which a part has come says that it is urgent."""
        return self.awaited_bytes > 0 and bool(self._kept[9] & URGENT)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now, in order. Raises `FrameInvalid`, and always after that."""
        if self._over:
            raise FrameInvalid("the connection was given up because of an earlier frame")
        source = memoryview(data)
        if self.partial:
            self._kept += data
            if len(self._kept) < self._needed:
                return []
            # Frames keep views of this buffer: the next bytes go to a new one.
            source, self._kept = memoryview(self._kept), bytearray()
        frames: list[Frame] = []
        # What is raised below is raised for good.
        self._over = True
        start, end, needed = 0, len(source), HEADER_BYTES
        while end - start >= HEADER_BYTES:
            head_start = start + HEADER_BYTES
            head_bytes, body_bytes, kind, _flags, target, request, head_crc, check = (
                _HEADER.unpack_from(source, start)
            )
            if _crc(bytes(source[start : head_start - _CHECK.size])) != check:
                raise FrameInvalid("a frame's header does not match its checksum")
            needed = HEADER_BYTES + head_bytes + body_bytes
            if needed > self.frame_bytes_max:
                raise FrameInvalid(f"a frame of {needed} bytes is over {self.frame_bytes_max}")
            if end - start < needed:
                break
            start += needed
            needed = HEADER_BYTES
            body_start = head_start + head_bytes
            head = bytes(source[head_start:body_start])
            if _crc(head) != head_crc:
                raise FrameInvalid("a frame's head does not match its checksum")
            frames.append(Frame(kind, target, request, head, source[body_start:start]))
        self._over = False
        self._needed = needed
        self.partial = start < end
        if self.partial:
            self._kept += source[start:]
        return frames


class Greeting(NamedTuple):
    """What HELLO and WELCOME say."""

    major: int
    minor: int
    options: dict[str, Any]


def encode_greeting(
    options: dict[str, Any], major: int = WIRE_MAJOR, minor: int = WIRE_MINOR
) -> bytes:
    """The head of HELLO or WELCOME."""
    return _GREETING.pack(MAGIC, major, minor) + msgspec.msgpack.encode(options)


def decode_greeting(head: bytes) -> Greeting:
    """Read the head of HELLO or WELCOME. Raises `FormatTooNew`, `FrameInvalid`."""
    if len(head) < _GREETING.size or not head.startswith(MAGIC):
        raise FrameInvalid("the connection does not begin like one of this protocol")
    _, major, minor = _GREETING.unpack_from(head)
    if major > WIRE_MAJOR:
        raise FormatTooNew(
            f"the other side speaks wire format {major}.{minor}, this program up to {WIRE_MAJOR}"
        )
    try:
        options = msgspec.msgpack.decode(head[_GREETING.size :], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"the options of a greeting cannot be read: {error}") from error
    return Greeting(major, minor, options)


def encode_error(code: ErrorCode, text: str) -> bytes:
    """The head of REFUSED or ERROR."""
    return msgspec.msgpack.encode((int(code), text))


def decode_error(head: bytes) -> tuple[int, str]:
    """Read the head of REFUSED or ERROR; a code may be newer than `ErrorCode`."""
    try:
        code, text = msgspec.msgpack.decode(head, type=tuple[int, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"an error message cannot be read: {error}") from error
    return code, text
