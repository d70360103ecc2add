"""Groups of commands that are imported when one of them is called for.

A bookie's process has no use for what lists objects: with the modules of every command it would
take several times as long to start.

Invariants:
- The help of a group imports none of its commands: what stands in the table is what they say of
  themselves.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


class Late(NamedTuple):
    """A command: where its function or its `Typer` is, as `module:name`, and its help's line."""

    where: str
    help: str


def late(commands: dict[str, Late]) -> type[TyperGroup]:
    """The class of a group that has these commands, too, by name."""

    class LateGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, (_, line) in commands.items():
                self.commands[name] = TyperCommand(name, help=line)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """As every group does, once the command that is called for was imported."""
            if args[0] in commands:
                self.commands[args[0]] = load(args[0], commands[args[0]])
            return super().resolve_command(ctx, args)

    return LateGroup


def load(name: str, command: Late) -> Any:
    """Import a command."""
    module, _, attribute = command.where.partition(":")
    found: typer.Typer | Callable[..., Any] = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        loaded: Any = get_group(found)
        loaded.name = name
        return loaded
    alone = typer.Typer(rich_markup_mode=None, add_completion=False)
    alone.command(name)(found)
    return get_command(alone)
