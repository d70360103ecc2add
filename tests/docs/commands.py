"""The command's tree, as its help shows it: what there is, with which options."""

from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.main import get_command

from herdbook.cli.main import app

ROOT_COMMAND: Final[Any] = get_command(app)


def resolved(group: Any, name: str) -> Any:
    """A group's command, with its module imported; None if there is none."""
    context = typer.Context(group)
    if group.get_command(context, name) is None:
        return None
    return group.resolve_command(context, [name])[1]


def all_commands(group: Any = ROOT_COMMAND, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path, groups before what is in them, as the help has them."""
    yield path, group
    if hasattr(group, "list_commands"):
        for name in group.list_commands(typer.Context(group)):
            found = resolved(group, name)
            if not found.hidden:
                yield from all_commands(found, *path, name)


def options_of(command: Any) -> set[str]:
    """The options of a command."""
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
        "--help"
    }


def unknown_in(words: list[str]) -> list[str]:
    """What the words behind `herdbook` name and the command does not have."""
    command = ROOT_COMMAND
    rest = list(words)
    while hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
        found = resolved(command, rest[0])
        if found is None:
            return [rest[0]]
        command = found
        rest.pop(0)
    return [
        name
        for word in rest
        if word.startswith("--") and (name := word.partition("=")[0]) not in options_of(command)
    ]
