"""Batches of tasks on their way to a command: checked, encoded once, cut where a command is full.

Invariants:
- What is encoded here is what the state machine takes: a spec that it would refuse to read is
  refused in words, and nothing of its batch is sent.
- The parts of a batch are the batch, in its order.
- A task that is as the one before it, but for its payload, is only that payload: never the first
  one of a part.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from broker.commands import ITEMS_MAX, Spec, checked, decode_spec, encode
from broker.errors import InvalidTask, TooLarge
from broker.task import PAYLOAD_BYTES_MAX
from engine.limits import MIB

BATCH_BYTES_MAX: Final = MIB
_HEADER: Final = 3
"""The bytes before a spec's first field: it is an array of 16 or more."""
_BYTES_KINDS: Final = (0xC4, 0xC5, 0xC6)
"""What a payload that stands for a task begins with."""
_decode_payload: Final = msgspec.msgpack.Decoder(bytes).decode
assert len(Spec.__struct_fields__) > 15
assert Spec.__struct_fields__[:3] == ("type", "tenant", "payload")


class EncodedSubmit(msgspec.Struct, array_like=True, tag=1):
    """As `commands.Submit`, of tasks that are encoded already."""

    specs: list[msgspec.Raw]
    now_ms: int
    transaction: int = 0
    atomic: bool = False
    owner: str = ""


def encode_specs(specs: Sequence[Spec]) -> list[bytes]:
    """Each of them, encoded. Raises `InvalidTask` for the first that is none."""
    try:
        return _encoded(specs)
    except (msgspec.MsgspecError, TypeError, OverflowError, ValueError):
        # Which one it is, and why, is told in words.
        return [encode(spec) for spec in checked_all(specs)]


def checked_all(wanted: Sequence[Spec]) -> Sequence[Spec]:
    """The same, if all would be taken. Raises `InvalidTask` for the first that would not.

    >>> checked_all([Spec("milk"), Spec("")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    broker.errors.InvalidTask: task 2 of 2: type: Expected `str` of length >= 1 ...
    """
    for number, spec in enumerate(wanted, 1):
        try:
            checked(spec)
        except InvalidTask as error:
            which = f"task {number} of {len(wanted)}: " if len(wanted) > 1 else ""
            raise InvalidTask(which + error.message) from None
    return wanted


def _encoded(specs: Sequence[Spec]) -> list[bytes]:
    """Those that are as the one before them are short. Raises for what cannot be decoded again."""
    encoded: list[bytes] = []
    add = encoded.append
    before: Spec | None = None
    whole = head = tail = b""
    for spec in specs:
        one = encode(spec)
        payload = spec.payload
        if before is not None and spec.type == before.type and spec.tenant == before.tenant:
            if not head:
                at = _HEADER + len(encode(before.type)) + len(encode(before.tenant))
                head, tail = whole[:at], whole[at + len(encode(before.payload)) :]
            if type(payload) is bytes and len(payload) <= PAYLOAD_BYTES_MAX:
                short = encode(payload)
                if one == head + short + tail:
                    add(short)
                    continue
        decode_spec(one)
        add(one)
        before, whole, head = spec, one, b""
    return encoded


def expanded(specs: Sequence[bytes]) -> list[Spec]:
    """Each task of a batch, whole."""
    found: list[Spec] = []
    for spec in specs:
        if spec[0] in _BYTES_KINDS:
            found.append(msgspec.structs.replace(found[-1], payload=_decode_payload(spec)))
        else:
            found.append(decode_spec(spec))
    return found


def is_full(specs: Sequence[bytes]) -> bool:
    """Whether they are more than a command takes."""
    return len(specs) > ITEMS_MAX or sum(map(len, specs)) > BATCH_BYTES_MAX


def parts_of(specs: Sequence[bytes]) -> list[Sequence[bytes]]:
    """A batch, cut where a command is full.

    >>> [len(part) for part in parts_of([b"task"] * 2_500)]
    [1000, 1000, 500]
    """
    parts: list[Sequence[bytes]] = []
    part: list[bytes] = []
    size_bytes = 0
    whole = b""
    for spec in specs:
        short = spec[0] in _BYTES_KINDS
        if not short:
            whole = spec
        if part and (len(part) == ITEMS_MAX or size_bytes + len(spec) > BATCH_BYTES_MAX):
            parts.append(part)
            part, size_bytes = [], 0
            if short:
                payload = _decode_payload(spec)
                spec = encode(msgspec.structs.replace(decode_spec(whole), payload=payload))
        part.append(spec)
        size_bytes += len(spec)
    parts.append(part)
    return parts


def bounded(task_ids: Sequence[int]) -> Sequence[int]:
    """The same, if they fit in a command. Raises `TooLarge`."""
    if len(task_ids) > ITEMS_MAX:
        raise TooLarge(f"{len(task_ids)} tasks at once; {ITEMS_MAX} fit")
    return task_ids
