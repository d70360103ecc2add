"""Keys of the broker's rows: a letter, then parts whose bytes are ordered as their values are.

    A id(8)            a task that has not ended      F id(8)               one that has
    P id(8)            a payload                      R id(8)               a result
    X ms(8) id(8)      ids of tasks to purge then     Z                     the counters
    S slot             the task in a slot             U tenant 00 01 key    of a unique key
    T transaction(8)   an open transaction            E transaction(8)      one that is ending
    W worker           a worker's session             B id(8)               a prepared one's parents
    C name             a schedule                     G kind 00 01 name     a setting
    D parent(8) id(8)  an edge of a graph             Q parent(8)           one to be settled
    K name             a code pool                    L name 00 01 n(4)     a part of its bytes
    O name             a roll-out                     N cluster             who holds a cluster
    M name 00 01 n(8)  what was noted of a roll-out by its change n
    V                  changes of the broker's time
    I transaction(8)   the end of a transaction whose tasks are seen to follow all at once

Numbers are unsigned and big-endian, text is UTF-8. A text before another part has each 00 followed
by ff, and ends with 00 01.

Invariants:
- No two kinds share a first byte, and none is zero: those keys are the replica's.
- Keys of numbers are in the order of the numbers, so a page goes on from the last key's id.
"""

import struct
from typing import Final

ACTIVE: Final = b"A"
FINAL: Final = b"F"
PAYLOAD: Final = b"P"
RESULT: Final = b"R"
EXPIRY: Final = b"X"
SLOT: Final = b"S"
UNIQUE: Final = b"U"
TRANSACTION: Final = b"T"
ENDING: Final = b"E"
WHOLE: Final = b"I"
PARENTS: Final = b"B"
WORKER: Final = b"W"
SCHEDULE: Final = b"C"
SETTING: Final = b"G"
EDGE: Final = b"D"
UNSETTLED: Final = b"Q"
POOL: Final = b"K"
POOL_PART: Final = b"L"
COUNTERS: Final = b"Z"
CLOCK: Final = b"V"
ROLLOUT: Final = b"O"
CLUSTER: Final = b"N"
NOTE: Final = b"M"

ID_MAX: Final = 2**63 - 1

_ONE: Final = struct.Struct(">cQ")
_TWO: Final = struct.Struct(">cQQ")
_NUMBER: Final = struct.Struct(">Q")
_PART: Final = struct.Struct(">I")
_pack_one = _ONE.pack


def numbered(kind: bytes, number: int) -> bytes:
    """The key of what is kept under a number.

    >>> numbered(ACTIVE, 5)
    b'A\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x05'
    """
    return _pack_one(kind, number)


def number_of(key: bytes) -> int:
    """The number behind a key's letter."""
    number: int = _NUMBER.unpack_from(key, 1)[0]
    return number


def paired(kind: bytes, first: int, second: int) -> bytes:
    """The key of what is kept under two numbers."""
    return _TWO.pack(kind, first, second)


def pair_of(key: bytes) -> tuple[int, int]:
    """The two numbers behind a key's letter."""
    _, first, second = _TWO.unpack(key)
    return first, second


def named(kind: bytes, name: str) -> bytes:
    """The key of what is kept under a name."""
    return kind + name.encode()


def name_of(key: bytes) -> str:
    """The name behind a key's letter."""
    return key[1:].decode()


def unique_key(tenant: str, name: str) -> bytes:
    """The key of a tenant's unique key: each tenant has its own ones."""
    return UNIQUE + _terminated(tenant) + name.encode()


def setting_key(kind: str, name: str) -> bytes:
    """The key of a setting.

    >>> split_setting(setting_key("limit", "db"))
    ('limit', 'db')
    """
    return setting_prefix(kind) + name.encode()


def setting_prefix(kind: str) -> bytes:
    """What the keys of all settings of a kind begin with."""
    return SETTING + _terminated(kind)


def split_setting(key: bytes) -> tuple[str, str]:
    """Kind and name of a setting."""
    kind, _, name = key[1:].partition(b"\x00\x01")
    return kind.replace(b"\x00\xff", b"\x00").decode(), name.decode()


def part_key(name: str, number: int) -> bytes:
    """The key of a part of a code pool's bytes."""
    return part_prefix(name) + _PART.pack(number)


def part_prefix(name: str) -> bytes:
    """What the keys of all parts of a code pool begin with."""
    return POOL_PART + _terminated(name)


def note_key(name: str, number: int) -> bytes:
    """The key of what was noted by a change of a roll-out."""
    return note_prefix(name) + _NUMBER.pack(number)


def note_number(key: bytes) -> int:
    """The number of the change that noted it."""
    number: int = _NUMBER.unpack(key[-8:])[0]
    return number


def note_prefix(name: str) -> bytes:
    """What the keys of all notes of a roll-out begin with."""
    return NOTE + _terminated(name)


def end_of(prefix: bytes) -> bytes:
    """The lowest key above all that begin so. A prefix never ends with ff here.

    >>> end_of(b"A")
    b'B'
    """
    assert prefix and prefix[-1] < 0xFF, "nothing begins so"
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def pack_ids(ids: list[int]) -> bytes:
    """Ids as they stand in a row.

    >>> unpack_ids(pack_ids([1, 2]))
    [1, 2]
    """
    return struct.pack(f">{len(ids)}Q", *ids)


def unpack_ids(value: bytes) -> list[int]:
    """Ids of a row."""
    return list(struct.unpack(f">{len(value) // 8}Q", value))


def pack_id(number: int) -> bytes:
    """One id as it stands in a row."""
    return _NUMBER.pack(number)


def unpack_id(value: bytes) -> int:
    """The id of a row."""
    number: int = _NUMBER.unpack(value)[0]
    return number


def _terminated(text: str) -> bytes:
    return text.encode().replace(b"\x00", b"\x00\xff") + b"\x00\x01"
