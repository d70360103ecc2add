"""Groups of commands that are imported when one of them is called for.

A bookie's process has no use for what lists objects: with the modules of every command it would
take several times as long to start.

Invariants:
- The help of a group imports none of its commands: what stands in the table is what they say of
  themselves.
- A list of commands shows the first sentence of each, all of it.
- A wrong call is told by one line, like every error.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from herdbook.cli.examples import epilog_of

_UsageError: Any = typer.BadParameter.__base__


class Late(NamedTuple):
    """A command: where its function or its `Typer` is, as `module:name`, and its help's line.

    `section` is the heading in the group's help under which it stands.
    """

    where: str
    help: str
    section: str = "Commands"


def late(commands: dict[str, Late]) -> type[TyperGroup]:
    """The class of a group that has these commands, too, by name."""

    class LateGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for name, late in commands.items():
                line = _first_sentence(late.help)
                self.commands[name] = TyperCommand(name, help=late.help, short_help=line)

        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            """As every group does; what is wrong is told by one line."""
            with _in_one_line():
                return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            """As every group does; what is wrong is told by one line."""
            with _in_one_line():
                return super().invoke(ctx)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """As every group does, once the command that is called for was imported."""
            if args[0] in commands:
                self.load(args[0], _path(ctx))
            return super().resolve_command(ctx, args)

        def load(self, name: str, path: tuple[str, ...] = ()) -> Any:
            """Import a command of the group, which is called by `path`, and put it in place."""
            loaded = load(name, commands[name])
            _equip(loaded, (*path, name))
            self.commands[name] = loaded
            return loaded

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            """The commands under the headings of their sections, in one column."""
            sections: dict[str, list[tuple[str, str]]] = {}
            width = max(map(len, self.commands))
            for name, command in self.commands.items():
                section = commands[name].section if name in commands else "Commands"
                line = (f"{name:{width}}", command.get_short_help_str())
                sections.setdefault(section, []).append(line)
            for section, lines in sections.items():
                with formatter.section(section):
                    formatter.write_dl(lines)

    return LateGroup


def tree(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group and every group, each imported, by the words that call it."""
    yield path, group
    for name in getattr(group, "commands", {}):
        found = group.commands[name]
        if hasattr(group, "load") and found.callback is None:
            found = group.load(name, path)
        yield from tree(found, (*path, name))


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


@contextmanager
def _in_one_line() -> Iterator[None]:
    """A wrong call is told as every other error is: by a line that says what to do."""
    try:
        yield
    except _UsageError as error:
        said = " ".join(error.format_message().split())
        help_asked = error.ctx is not None and said.startswith("Usage:")
        if not help_asked:
            where = error.ctx.command_path if error.ctx is not None else "herdbook"
            line = f"Error: {said} ({where} --help tells more)"
            error.show = lambda file=None: typer.echo(line, err=True)
        raise


def _equip(command: Any, path: tuple[str, ...]) -> None:
    """Give a command and all below it their examples, and their whole line in lists."""
    command.epilog = epilog_of(path)
    if command.help and not command.short_help:
        command.short_help = _first_sentence(command.help)
    for name, each in getattr(command, "commands", {}).items():
        _equip(each, (*path, name))


def _path(ctx: Any) -> tuple[str, ...]:
    """The words by which a group was called, without that of the whole command."""
    words: tuple[str, ...] = ()
    while ctx.parent is not None:
        words = (ctx.info_name, *words)
        ctx = ctx.parent
    return words


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."
