"""The command's tree, as its help shows it: what there is, with which options."""

from functools import cache
from typing import Any

from typer.main import get_command

from herdbook.cli.late import tree
from herdbook.cli.main import app


@cache
def all_commands() -> dict[tuple[str, ...], Any]:
    """Every command and group by the words that call it, in the order of the help."""
    return {path: command for path, command in tree(get_command(app)) if not command.hidden}


def options_of(command: Any) -> set[str]:
    """The options of a command."""
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
        "--help"
    }


def unknown_in(words: list[str]) -> list[str]:
    """What the words behind `herdbook` name and the command does not have."""
    known = all_commands()
    path: tuple[str, ...] = ()
    rest = list(words)
    while hasattr(known[path], "commands") and rest and not rest[0].startswith("-"):
        path = (*path, rest.pop(0))
        if path not in known:
            return [path[-1]]
    options = options_of(known[path])
    return [
        name
        for word in rest
        if word.startswith("--") and (name := word.partition("=")[0]) not in options
    ]
