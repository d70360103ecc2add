"""What the log says of roll-outs: a record that is compared and set, with the tasks of its steps.

Invariants:
- A record, the tasks that it begins and the notes of why are one command: all of it or nothing.
- What a record means is `broker/rollouts`'s business; here it is bytes with a version.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.errors import error_of
from broker.spec import ITEMS_MAX, Id, MaybeName, Millis, Name, Spec

RECORD_BYTES_MAX: Final = 1024 * 1024
NOTES_MAX: Final = 20_000
RESERVED: Final = "rollout:"
"""Types that begin so are submitted by roll-outs and by nobody else."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """A line of a roll-out's audit log: who did what, to which node ("": to the whole of it)."""

    at_ms: int
    by: str
    node: str
    text: str


class RolloutChange(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of a roll-out: its record, from the version that was seen (0: there was none).

    `cluster` is held by one roll-out at a time, from this on until it is put with `ended`.
    """

    name: Name
    version: Id
    record: Annotated[bytes, Meta(max_length=RECORD_BYTES_MAX)]
    cluster: Name
    ended: bool = False
    specs: Annotated[Sequence[Spec], Meta(max_length=ITEMS_MAX)] = ()
    notes: Annotated[Sequence[Note], Meta(max_length=NOTES_MAX)] = ()


class RolloutPut(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Set a roll-out's record if it is at its version, and submit its tasks.

    Answers a `RolloutAnswer`.
    """

    change: RolloutChange
    by: MaybeName
    now_ms: Millis


class RolloutRemove(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """Remove a roll-out that has ended, with its notes. Answers a `RolloutAnswer`.

    Of many notes a part goes; it is to be sent again until `again` is false.
    """

    name: Name
    version: Id
    now_ms: Millis


class RolloutAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The ids of the tasks, in their order; or with a `code`, why nothing was changed."""

    task_ids: list[int] = []
    again: bool = False
    code: str = ""
    message: str = ""

    def taken(self) -> list[int]:
        """The ids. Raises what refused it."""
        if self.code:
            raise error_of(self.code, self.message)
        return self.task_ids


class RolloutRow(msgspec.Struct, frozen=True, array_like=True):
    """A roll-out as it is stored. `task_ids` are those of the tasks that its last change began."""

    name: str
    version: int
    record: bytes
    cluster: str
    ended: bool
    task_ids: list[int]
    by: str
    created_ms: int
    changed_ms: int


encode_row: Final = msgspec.msgpack.Encoder().encode
decode_change: Final = msgspec.msgpack.Decoder(RolloutChange).decode
decode_row: Final = msgspec.msgpack.Decoder(RolloutRow).decode
decode_notes: Final = msgspec.msgpack.Decoder(list[Note]).decode
decode_rollout_answer: Final = msgspec.msgpack.Decoder(RolloutAnswer).decode
