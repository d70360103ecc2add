"""The major version of a value in the metadata store, a MessagePack map.

Invariants:
- A value without a version is of the first one, whatever version this program writes.
- The version is looked at before anything else: of a newer one no other field need be known.
"""

from typing import Any, Final, TypeVar

import msgspec

from engine.errors import FormatTooNew

FIRST_MAJOR: Final = 1
"""What a value without a version has; so it is the default of the field, for ever."""

LAYOUT_MAJOR: Final = 2
"""The newest layout of a cluster's keys in ZooKeeper that this program reads. Its bookies and
processes publish it, so that `engine.metadata.upgrade` knows when all of them can read it."""

_Value = TypeVar("_Value", bound=msgspec.Struct)
_encode = msgspec.msgpack.Encoder().encode
_decode_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode


def encode_major(value: _Value, major: int) -> bytes:
    """A value with the version that its writer has, in the field `format_major`."""
    current: Any = msgspec.structs.replace(value, format_major=major)
    return _encode(current)


def check_major(value: bytes, what: str, known: int, field: str = "format_major") -> None:
    """Raise `FormatTooNew` for a value of a newer version; msgspec's errors for what is no map."""
    raw = _decode_fields(value).get(field)
    found = FIRST_MAJOR if raw is None else msgspec.msgpack.decode(raw, type=int)
    if found > known:
        raise FormatTooNew.of(what, found, known)
