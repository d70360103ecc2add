"""Calls and answers in frames.

Frames and greetings are the engine's (`engine.transport.frames`); of kinds there are three more:

    128  CALL      a call, or a part of one: with target 1 more follows in the next of its request
    129  ANSWER    the same of the answer
    130  CANCEL    nobody waits for this request any more

HELLO and WELCOME have the option `herd`: [major, minor] of the format of calls; WELCOME tells with
`lease_ms` within what time the server wants to hear something, and with `part_bytes` how large the
head of a CALL may be.

Invariants:
- The parts of one message leave in their order; those of others may stand between them.
"""

from typing import Final

from engine.transport.connection import FramedConnection

CALL: Final = 128
ANSWER: Final = 129
CANCEL: Final = 130
LAST: Final = 0
MORE: Final = 1
HERD: Final = "herd"
LEASE: Final = "lease_ms"
PART: Final = "part_bytes"


def send_parts(
    wire: FramedConnection, kind: int, request: int, data: bytes, part_bytes: int
) -> None:
    """Queue a message as one frame, or as several where it is large."""
    start = 0
    while len(data) - start > part_bytes:
        part = data[start : start + part_bytes]
        wire.send(kind, part, target=MORE, request=request)
        start += part_bytes
    wire.send(kind, data[start:] if start else data, target=LAST, request=request)
