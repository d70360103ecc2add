"""What has to be in the store: dictionaries, and what each operation makes of them."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from blobit.bucket import NamedUpload

Key = tuple[str, str]
"""A bucket's name and an object's."""

FEW_MS = 120_000
"""Nothing that a run does between two leaps of the clock takes so long."""


class Object(NamedTuple):
    """What an object holds, and until when."""

    data: bytes
    expires_ms: int | None = None
    content_type: str = ""


@dataclass(slots=True)
class Pending:
    """An upload in parts that is under way, and until when."""

    key: Key
    ends_ms: int
    serial: int
    parts: dict[int, bytes] = field(default_factory=dict)
    busy: bool = False


@dataclass(slots=True)
class Open:
    """An upload that is written piece by piece, round after round."""

    key: Key
    expires_ms: int | None
    serial: int
    upload: NamedUpload
    leaps: int
    data: bytes = b""
    busy: bool = True


class Unnamed(NamedTuple):
    """What an object without a name holds."""

    serial: int
    data: bytes


@dataclass(slots=True)
class Operation:
    """One call, the objects that it touches, what they are afterwards, and what it answers."""

    label: str
    run: Callable[[], Awaitable[Any]]
    after: dict[Key, Object | None] = field(default_factory=dict)
    expect: Callable[[Any], bool] | None = None
    error: type[Exception] | None = None
    may_refuse: type[Exception] | None = None
    refused: Callable[[], Awaitable[None]] | None = None
    """Told that it was refused, though it might have been taken."""
    done: Callable[[Any], None] | None = None
    """Told of the answer when all is well."""
    upload: str | None = None
    apart: bool = False
    """Whether what becomes of one object says nothing of the others."""


class Model:
    """Everything that was put and not taken away."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.unnamed: dict[tuple[str, str], Unnamed] = {}
        self.uploads: dict[str, Pending] = {}
        self.open: dict[int, Open] = {}
        self.leaps = 0

    def apply(self, after: dict[Key, Object | None]) -> None:
        """Take what an operation has made."""
        for key, found in after.items():
            if found is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = found

    def expire(self, now_ms: int) -> None:
        """Forget what has expired."""
        for key, found in list(self.objects.items()):
            if found.expires_ms is not None and found.expires_ms <= now_ms:
                del self.objects[key]
        for upload_id, pending in list(self.uploads.items()):
            if pending.ends_ms <= now_ms:
                del self.uploads[upload_id]

    def doubtful(self, now_ms: int) -> bool:
        """Whether something expires just about now."""
        ends = [found.expires_ms for found in self.objects.values()]
        ends += [found.expires_ms for found in self.open.values()]
        ends += [found.ends_ms for found in self.uploads.values()]
        return any(end is not None and abs(end - now_ms) < FEW_MS for end in ends)

    def of_bucket(self, bucket: str) -> dict[str, Object]:
        """The objects of one bucket, in the order of their names' bytes."""
        names = sorted((key[1] for key in self.objects if key[0] == bucket), key=str.encode)
        return {name: self.objects[bucket, name] for name in names}


def together(parts: Iterable[bytes]) -> bytes:
    """Bytes one behind the other."""
    return b"".join(parts)
