"""What all commands that look at a store share: how they find it, run, and end.

Invariants:
- Exit status 0: it worked; 1: it did not, or something is wrong; 2: the call was wrong.
- An error of the engine is one line on standard error, its kind first.
- Progress goes to standard error, and only where a person looks at it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from engine.errors import EngineError, InvalidRequest
from engine.folder.naming import refuse_url
from engine.ports.system_loop import new_event_loop
from herdbook.cli.statuses import status_of
from herdbook.cli.working import aside
from herdbook.finding import open_store

if TYPE_CHECKING:
    from rich.progress import Progress

    from engine.ledger.client import LedgerClient

R = TypeVar("R")
CUT_CHARACTERS_MIN: Final = 6
"""No column of a table is cut to less."""

ID_CHARACTERS: Final = 8
"""So much of an id tells it from others, beside a name."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "--data",
        help="The store: a folder, or herdbook://host:port,host:port/path. "
        "Default: HERDBOOK_URL, then url in the user's configuration file.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
LedgerId = Annotated[int, typer.Argument(help="The ledger's id.", min=0)]


def refuse_url_as_data(data: Path, instead: str) -> None:
    """End the command if --data is a url and no folder."""
    try:
        refuse_url(data, instead)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run on a loop of its own; an error of the engine ends the command."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except EngineError as error:
        with aside():
            typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(status_of(error)) from error


def warn_of_clear_password(url: str | None) -> None:
    """Print a warning if a server is about to send ZooKeeper's password unencrypted.

    Errors in finding the store are ignored here: opening it raises them.
    """
    from engine.metadata.cluster_url import parse_url
    from engine.metadata.zookeeper_settings import unencrypted_password
    from herdbook.finding import find, is_cluster
    from herdbook.task_api import read_configured

    try:
        told = read_configured()
        found = find(url, configuration=told)
        hosts = parse_url(found).hosts if is_cluster(found) else ""
    except InvalidRequest:
        return
    table = told.zookeeper
    if hosts and (why := unencrypted_password(hosts, table.user, bool(table.authorities))):
        typer.echo(f"warning: {why}, in the table [zookeeper]", err=True)


def with_store(url: str | None, work: "Callable[[LedgerClient], Awaitable[R]]") -> R:
    """Open the store that the rule finds, do the work with it, close it."""

    async def opened() -> R:
        async with open_store(url) as client:
            return await work(client)

    return run(opened())


def progress() -> "Progress":
    """A bar for counted work on standard error; nothing where nobody looks."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    # Where nobody looks a bar that is taken away would leave an empty line.
    unseen = not console.is_terminal
    return Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=unseen
    )


def print_json(found: Iterable[dict[str, Any]]) -> None:
    """One object a line."""
    for each in found:
        typer.echo(json.dumps(each))


def plain(value: Any) -> Any:
    """A structure as plain values, with every field: `to_builtins` leaves out what is usual."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(each) for name, each in msgspec.structs.asdict(value).items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def called(host: str, identity: str) -> str:
    """A node for people: its name, where that is known, and the beginning of its id."""
    return f"{host} {identity[:ID_CHARACTERS]}" if host else identity


def moment_of(wall_ms: int) -> str:
    """A moment of the wall clock, in the time zone of whoever looks."""
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().isoformat(" ", "seconds")


def print_facts(facts: dict[str, Any]) -> None:
    """One thing, as a table of names and values."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), escape(str(value)))
    Console().print(table)


def print_table(
    columns: Iterable[str], rows: Iterable[Iterable[object]], cut: Collection[str] = ()
) -> None:
    """Many things, one a row. A column in which nothing stands is left out.

    Of the columns in `cut` only so much is shown as fits the line.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    names, console = list(columns), Console()
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    shown = [n for n in range(len(names)) if not n or any(row[n] for row in cells)]
    widths = {n: max(map(len, [names[n], *(row[n] for row in cells)])) for n in shown}
    surplus = sum(widths.values()) + 3 * len(shown) + 1 - console.width
    table = Table()
    for number in sorted(shown, key=lambda each: -widths[each]):
        # What is long gives way to what is short.
        if surplus > 0 and names[number] in cut and widths[number] > CUT_CHARACTERS_MIN:
            kept = max(CUT_CHARACTERS_MIN, widths[number] - surplus)
            surplus -= widths[number] - kept
            widths[number] = kept
    for number in shown:
        if names[number] in cut:
            table.add_column(
                names[number], overflow="ellipsis", no_wrap=True, max_width=widths[number]
            )
        else:
            # An id that is cut off is of no use to whoever wants to name it in the next command.
            table.add_column(names[number], overflow="fold", no_wrap=not number)
    for row in cells:
        table.add_row(*(row[number] for number in shown))
    console.print(table)
