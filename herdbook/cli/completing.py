"""What may come next on a command's line: commands, options, names of buckets and tablespaces.

Invariants:
- It only looks: nothing is made, and what cannot be found in `_LOOK_S` is not waited for.
- Whatever goes wrong, it has nothing to suggest and says nothing: somebody is typing.
- Nothing to suggest means that the shell suggests files.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

_LOOK_S: Final = 1.5
_STORE: Final = ("--url", "--data")
_STORE_METAVAR: Final = "FOLDER|URL"

Names = Callable[[str | None], Awaitable[list[str]]]


class Suggestion(NamedTuple):
    """A word that may come next, and what it means."""

    word: str
    meaning: str = ""


class _Place:
    """How far a line has come: the command that is called, and what was given to it."""

    def __init__(self, group: Any) -> None:
        self.path: tuple[str, ...] = ()
        self.command = group
        self.given: list[str] = []
        self.store: str | None = None
        self.waiting: Any = None
        """The option whose value comes next."""

    def take(self, word: str) -> None:
        """Go on by a whole word."""
        if self.waiting is not None:
            self._set(self.waiting, word)
            self.waiting = None
        elif word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            option = next((each for each in self._options() if name in _spellings(each)), None)
            if option is not None and equals:
                self._set(option, value)
            elif option is not None and not _is_flag(option):
                self.waiting = option
        elif not self.given and word in getattr(self.command, "commands", {}):
            found = self.command.commands[word]
            late = hasattr(self.command, "load") and found.callback is None
            self.command = self.command.load(word, self.path) if late else found
            self.path = (*self.path, word)
        else:
            self.given.append(word)
            argument = self._argument(len(self.given) - 1)
            if argument is not None and argument.metavar == _STORE_METAVAR:
                self.store = word

    def next_words(self, begun: str) -> Iterator[Suggestion]:
        """Commands and options that begin so; none where a value is wanted."""
        if self.waiting is not None:
            return
        if begun.startswith("-"):
            for option in self._options():
                for word in _spellings(option):
                    yield Suggestion(word, " ".join((option.help or "").split()))
            yield Suggestion("--help", "Show this message and exit.")
        elif not self.given:
            for name, command in getattr(self.command, "commands", {}).items():
                yield Suggestion(name, command.get_short_help_str())

    def names(self) -> tuple[Names, str] | None:
        """Where the names come from that are wanted next, and what is put behind each."""
        if self.waiting is not None:
            spellings = _spellings(self.waiting)
            if "--tablespace" in spellings:
                return tablespaces, ""
            return (buckets, "") if "--bucket" in spellings else None
        argument = self._argument(len(self.given))
        if argument is None:
            return None
        metavar = argument.metavar or argument.name.upper()
        if metavar.startswith("BUCKET"):
            return buckets, "/" if "/" in metavar else ""
        if self.path[:1] == ("herd",) and metavar == "NAME":
            return tablespaces, ""
        return None

    def _set(self, option: Any, value: str) -> None:
        if set(_spellings(option)) & set(_STORE):
            self.store = value

    def _options(self) -> list[Any]:
        return [each for each in self.command.params if each.param_type_name == "option"]

    def _argument(self, place: int) -> Any:
        """What the argument at a place is for; the last one that repeats takes all that follow."""
        found = [each for each in self.command.params if each.param_type_name == "argument"]
        for argument in found:
            if argument.nargs < 0 or place < argument.nargs:
                return argument
            place -= argument.nargs
        return None


def complete(group: Any, line: str) -> list[Suggestion]:
    """What may come at the end of a line that begins with the command's own name."""
    words = _words(line)
    begun = words.pop() if words and not line[-1:].isspace() else ""
    place = _Place(group)
    for word in words[1:]:
        place.take(word)
    found = list(place.next_words(begun))
    wanted = place.names()
    if wanted is not None and not begun.startswith("-"):
        names, behind = wanted
        found += [Suggestion(name + behind) for name in _look(names, place.store)]
    return [each for each in found if each.word.startswith(begun)]


async def buckets(url: str | None) -> list[str]:
    """The buckets of the store that the rule finds."""
    from herdbook.blob_store import open_blobs

    async with open_blobs(url) as blobs:
        return [each.name for each in await blobs.buckets()]


async def tablespaces(url: str | None) -> list[str]:
    """The tablespaces of the store that the rule finds."""
    from herd.store import TABLESPACES
    from herdbook.finding import open_store

    async with open_store(url) as client:
        return await client.store.children(TABLESPACES)


def _look(names: Names, url: str | None) -> list[str]:
    async def look() -> list[str]:
        async with asyncio.timeout(_LOOK_S):
            return await names(url)

    try:
        return asyncio.run(look())
    except Exception:
        return []


def _words(line: str) -> list[str]:
    """The words of a line; a quote that is still open ends with it."""
    for closed in (line, line + "'", line + '"'):
        try:
            return shlex.split(closed)
        except ValueError:
            continue
    return line.split()


def _spellings(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _is_flag(option: Any) -> bool:
    return bool(option.is_flag or option.count)
