"""Calls and workers' links in frames: what the processes that use one folder say to each other.

Frames and greetings are the engine's (`engine.transport.frames`); of kinds there are five more:

    144  CALL      a name of `METHODS` with its arguments, or `FETCH_CODE` with a code pool's name
    145  ANSWER    what came of it: its result, or a failure
    146  CANCEL    nobody waits for this request any more
    147  LINK      a worker's hello; its link has the number of the request
    148  SAID      what worker or broker says over the link of that number
    149  UNLINK    the link of that number has ended

HELLO and WELCOME have the option `broker`: [major, minor] of the format of all this.

Invariants:
- What one side packs the other one unpacks to an equal object, or refuses the whole frame.
"""

from typing import Final

import msgspec

from broker.connection import FromBroker, FromWorker, Hello
from broker.errors import BrokerError, BrokerUnavailable, InvalidTask
from broker.wire.calling import error_told

CALL: Final = 144
ANSWER: Final = 145
CANCEL: Final = 146
LINK: Final = 147
SAID: Final = 148
UNLINK: Final = 149
OPTION: Final = "broker"
NONCE: Final = "nonce"
FORMAT_MAJOR: Final = 1
FORMAT_MINOR: Final = 0
FETCH_CODE: Final = "fetch_code"
FRAME_BYTES_MAX: Final = 80 * 1024 * 1024
"""An archive of code is the biggest thing that is asked for."""
MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX - 64 * 1024
QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
"""So much may wait for the other side to take it."""


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """A call."""

    name: str
    arguments: bytes


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What came of a call: with an empty `code` its result."""

    result: bytes = b""
    code: str = ""
    message: str = ""
    task_id: int = 0
    leader: str = ""

    def unwrap(self) -> bytes:
        """The result. Raises the `BrokerError` that was told."""
        if self.code:
            raise error_told(self.code, self.message, self.task_id, self.leader)
        return self.result


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_asked: Final = msgspec.msgpack.Decoder(Asked).decode
_decode_answered: Final = msgspec.msgpack.Decoder(Answered).decode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_decode_from_worker: Final = msgspec.msgpack.Decoder(list[FromWorker]).decode
_decode_from_broker: Final = msgspec.msgpack.Decoder(list[FromBroker]).decode


def pack(said: Asked | Answered | Hello | list[FromWorker] | list[FromBroker]) -> bytes:
    """The head of a frame."""
    return _encode(said)


def failed(error: BrokerError) -> bytes:
    """The answer to a call that failed."""
    return _encode(Answered(b"", error.code, str(error), error.task_id, error.leader))


def unpack_asked(head: bytes) -> Asked:
    """A call. Raises `InvalidTask`."""
    try:
        return _decode_asked(head)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidTask(f"that is no call: {error}") from error


def unpack_answered(head: bytes) -> Answered:
    """An answer. Raises `BrokerUnavailable` for one of another version."""
    try:
        return _decode_answered(head)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BrokerUnavailable(f"the broker answers in another way: {error}") from error


def unpack_hello(head: bytes) -> Hello:
    """A worker's hello. Raises `InvalidTask`."""
    try:
        return _decode_hello(head)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidTask(f"that is no worker's hello: {error}") from error


def unpack_from_worker(head: bytes) -> list[FromWorker]:
    """What a worker says. Raises `InvalidTask`."""
    try:
        return _decode_from_worker(head)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidTask(f"a worker says what this broker does not know: {error}") from error


def unpack_from_broker(head: bytes) -> list[FromBroker]:
    """What the broker says to a worker. Raises `BrokerUnavailable`."""
    try:
        return _decode_from_broker(head)
    except (msgspec.MsgspecError, UnicodeError) as error:
        text = f"the broker says what this worker does not know: {error}"
        raise BrokerUnavailable(text) from error
