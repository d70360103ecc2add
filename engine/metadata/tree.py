"""The state of a metadata store: keys, versions, owners, counters and watches, and nothing else.

Invariants:
- A change is checked before it is made; making one never fails.
- Changes name final values, so that making one twice is making it once.
- Every key is listed under its parent exactly while it exists.
- An owned (ephemeral) key is listed with its owner exactly while it exists.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from engine.errors import InvalidRequest, KeyExists, VersionConflict
from engine.limits import KIB, MIB
from engine.metadata.contract import Page, Versioned

VALUE_BYTES_MAX: Final = 1 * MIB
KEY_BYTES_MAX: Final = 1 * KIB
PAGE_NUMBERS: Final = 10_000

Watcher = Callable[[], None]


class Put(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A key has this value and version from now on."""

    key: str
    value: bytes
    version: int


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A key is gone."""

    key: str


class Count(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A counter's numbers up to `reached` are used up."""

    counter: str
    reached: int


Change = Put | Drop | Count


class Tree:
    """Keys with values. Synchronous, single-threaded, knows neither time nor disk."""

    def __init__(self) -> None:
        self._values: dict[str, Versioned] = {}
        self._names: dict[str, set[str]] = {}
        self._numbers: dict[str, list[int]] = {}
        """The numbers among them, sorted, of those that were listed since the last change."""
        self._owners: dict[str, int] = {}
        self._owned: dict[int, dict[str, None]] = {}
        self._counters: dict[str, int] = {}
        self._watchers: dict[str, dict[object, Watcher]] = {}

    def get(self, key: str) -> Versioned | None:
        """The value and version, or None."""
        return self._values.get(key)

    def children(self, prefix: str) -> list[str]:
        """The names of the keys directly under `prefix`, sorted."""
        return sorted(self._names.get(prefix.rstrip("/"), ()))

    def page(self, prefix: str, above: int) -> Page:
        """The lowest numbers above one among these names, at most `PAGE_NUMBERS`."""
        prefix = prefix.rstrip("/")
        numbers = self._numbers.get(prefix)
        if numbers is None:
            numbers = self._numbers[prefix] = sorted(numbers_of(self._names.get(prefix, ())))
        first = bisect_right(numbers, above)
        end = first + PAGE_NUMBERS
        return Page(numbers[first:end], end < len(numbers))

    def counter(self, counter: str) -> int:
        """The highest number used up; 0 at first."""
        return self._counters.get(counter, 0)

    def owner(self, key: str) -> int | None:
        """The session that an ephemeral key belongs to; None for any other key."""
        return self._owners.get(key)

    def check_absent(self, key: str) -> None:
        """Raises `KeyExists`."""
        if key in self._values:
            raise KeyExists(f"{key} exists")

    def check_version(self, key: str, version: int) -> None:
        """Raises `VersionConflict` unless the key is there in this version."""
        found = self._values.get(key)
        if found is None:
            raise VersionConflict(f"{key} is gone, version {version} was expected")
        if found.version != version:
            raise VersionConflict(f"{key} has version {found.version}, {version} was expected")

    def make(self, change: Change, owner: int | None = None) -> None:
        """Make a checked change; `owner` makes a new key ephemeral."""
        if isinstance(change, Put):
            self._put(change, owner)
        elif isinstance(change, Drop):
            self._drop(change.key)
        else:
            assert change.reached >= self.counter(change.counter), change
            self._counters[change.counter] = change.reached

    def end_session(self, owner: int) -> None:
        """Remove every key that a session owns, in the order in which they were made."""
        for key in list(self._owned.get(owner, ())):
            self._drop(key)
        assert owner not in self._owned

    def lasting(self) -> Iterator[Change]:
        """Changes that make an empty tree equal to this one, but for its ephemeral keys."""
        for counter, reached in self._counters.items():
            yield Count(counter, reached)
        for key, (value, version) in self._values.items():
            if key not in self._owners:
                yield Put(key, value, version)

    def watch(self, key: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher`, at once and within the change, when the key or a name under it changes.

        Returns a function that ends the watch.
        """
        identity = object()
        self._watchers.setdefault(key, {})[identity] = watcher

        def end() -> None:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(identity, None)
                if not watchers:
                    del self._watchers[key]

        return end

    def _put(self, change: Put, owner: int | None) -> None:
        key = change.key
        is_new = key not in self._values
        assert owner is None or is_new, key
        self._values[key] = Versioned(change.value, change.version)
        if is_new:
            parent, _, name = key.rpartition("/")
            self._names.setdefault(parent, set()).add(name)
            self._numbers.pop(parent, None)
            if owner is not None:
                self._owners[key] = owner
                self._owned.setdefault(owner, {})[key] = None
            self._notify(parent)
        self._notify(key)

    def _drop(self, key: str) -> None:
        if self._values.pop(key, None) is None:
            return
        parent, _, name = key.rpartition("/")
        names = self._names[parent]
        names.remove(name)
        self._numbers.pop(parent, None)
        if not names:
            del self._names[parent]
        owner = self._owners.pop(key, None)
        if owner is not None:
            owned = self._owned[owner]
            del owned[key]
            if not owned:
                del self._owned[owner]
        self._notify(parent)
        self._notify(key)

    def _notify(self, key: str) -> None:
        for watcher in list(self._watchers.get(key, {}).values()):
            watcher()


def numbers_of(names: Iterable[str]) -> list[int]:
    """The numbers among names, in their order. Each number has one name, that of `str`.

    >>> numbers_of(["17", "notes", "2", "02", "0"])
    [17, 2, 0]
    """
    names = list(names)
    joined = "".join(names)
    if joined.isascii() and joined.isdigit():
        # The usual case, ten thousand names at once: no step for each name in Python.
        numbers = list(map(int, names))
        if len("".join(map(str, numbers))) == len(joined):
            return numbers
    return [int(name) for name in names if _is_number(name)]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name[0] != "0" or name == "0")


def check_key(key: str) -> None:
    """Raises `InvalidRequest` for anything but a path like `/ledgers/17`."""
    if len(key) > KEY_BYTES_MAX or not key.startswith("/") or "\0" in key:
        raise InvalidRequest(f"not a metadata key: {key[:100]!r}")
    if any(part in ("", ".", "..") for part in key[1:].split("/")):
        raise InvalidRequest(f"not a metadata key: {key!r}")


def check_value(value: bytes) -> None:
    """Raises `InvalidRequest` for a value over `VALUE_BYTES_MAX`."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidRequest(f"a metadata value of {len(value)} bytes is over {VALUE_BYTES_MAX}")
