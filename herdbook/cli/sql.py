"""`herdbook sql`: a console for the tables of a store, and SQL for scripts.

Invariants:
- Standard output carries results alone; errors and progress go to the other one.
- Exit status 0: all worked; 1: a statement failed; 2: the call was wrong, or there is no store.
- A reader that stops reading ends the command without a word.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.errors import EngineError
from herdbook.cli.statuses import status_of
from herdbook.finding import (
    FILE_VARIABLE,
    check_store,
    configuration_file,
    find,
    is_cluster,
    read_configuration,
)

if TYPE_CHECKING:
    from herd.connection import Connection
    from herd.opening import Herd
    from herdbook.cli.sql_console import Console
    from herdbook.cli.sql_output import Output

Store = Annotated[
    str | None,
    typer.Argument(
        metavar="FOLDER|URL",
        help="The store: a folder, or herdbook://host:port,host:port/path. "
        "Default: HERDBOOK_URL, then url in the user's configuration file.",
        show_default=False,
    ),
]
Tablespace = Annotated[str, typer.Option("--tablespace", "-t", help="Which tablespace.")]
Create = Annotated[bool, typer.Option("--create", help="Make the folder if it is not there.")]


Commands = Annotated[
    list[str] | None,
    typer.Option("--command", "-c", help="Run this and leave. May be said several times."),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", allow_dash=True, help="Run a file and leave; - is standard input."
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON object a row. DECIMAL is a string, which keeps it exact; so are dates; "
        "bytes are base64.",
    ),
]
AsCsv = Annotated[
    bool,
    typer.Option("--csv", help='CSV with a line of names. NULL is nothing, no text is "".'),
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Go on after a statement that failed.")
]
Single = Annotated[
    bool, typer.Option("--single-transaction", "-1", help="All of -c and -f in one transaction.")
]
Follower = Annotated[
    bool, typer.Option("--follower", help="Of a cluster: read at any replica, change nothing.")
]
SameStore = Annotated[
    str | None, typer.Option("--url", "--data", help="The same as FOLDER|URL.", hidden=True)
]


def sql(
    store: Store = None,
    commands: Commands = None,
    files: Files = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    tablespace: Tablespace = "default",
    keep_going: KeepGoing = False,
    single: Single = False,
    create: Create = False,
    follower: Follower = False,
    url: SameStore = None,
) -> None:
    """Run SQL at a console, or from -c, -f or standard input."""
    if as_json and as_csv:
        raise typer.BadParameter("say --json or --csv, not both")
    if single and keep_going:
        raise typer.BadParameter("one transaction cannot keep going: say one of the two")
    from herdbook.cli.sql_output import Form, Output

    form = Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE
    ok = True
    with ending_quietly(), opened(store or url, create=create) as herd:
        output = Output(sys.stdout, form)
        console = _console(herd, tablespace, output, follower=follower)
        scripts = _scripts(commands or [], files or [])
        if scripts or not sys.stdin.isatty():
            ok = _run(console, scripts or [("", Path("-"))], keep_going=keep_going, single=single)
        else:
            _interact(herd, console)
        console.connection.close()
    if not ok:
        raise typer.Exit(1)


@contextmanager
def opened(store: str | None, *, create: bool = False) -> "Iterator[Herd]":
    """The tablespaces of a store. Ends the command if there is none, or on the store's errors."""
    from herd.errors import Error

    try:
        needed = bool(os.environ.get(FILE_VARIABLE))
        configuration = read_configuration(configuration_file(os.environ), needed=needed)
        found = find(store, os.environ, configuration, create=create)
        security = zookeeper = None
        if is_cluster(found):
            security, zookeeper = configuration.make_security(), configuration.make_zookeeper()
        elif not create:
            check_store(Path(found))
        from herd.opening import open_herd

        with open_herd(found, security=security, zookeeper=zookeeper) as herd:
            yield herd
    except (EngineError, Error) as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(status_of(error)) from error


@contextmanager
def ending_quietly() -> Iterator[None]:
    """A reader that went away ends the command, and Python says nothing of it at its end."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def _console(herd: "Herd", tablespace: str, output: "Output", *, follower: bool) -> "Console":
    from herdbook.cli.sql_console import Console

    def connect(name: str) -> "Connection":
        return herd.connect(name, autocommit=True, follower=follower)

    return Console(connect, tablespace, output, sys.stderr, herd.names)


def _scripts(commands: list[str], files: list[Path]) -> list[tuple[str, Path | None]]:
    """What to run, in the order of the command line as far as it tells: -c before -f."""
    return [(text, None) for text in commands] + [("", path) for path in files]


def _run(
    console: "Console", scripts: list[tuple[str, Path | None]], *, keep_going: bool, single: bool
) -> bool:
    from herdbook.cli.sql_console import Leave

    connection, ok = console.connection, True
    if single:
        connection.execute("BEGIN")
    try:
        for text, path in scripts:
            ok = _run_one(console, text, path, keep_going=keep_going) and ok
            if not ok and not keep_going:
                break
    except Leave:
        pass
    if single and connection.in_transaction:
        connection.commit() if ok else connection.rollback()
    return ok


def _run_one(console: "Console", text: str, path: Path | None, *, keep_going: bool) -> bool:
    if path is None:
        return console.run_script(StringIO(text), keep_going=keep_going)
    if str(path) == "-":
        return console.run_script(sys.stdin, "stdin", keep_going=keep_going)
    try:
        with path.open(encoding="utf-8-sig") as file:
            return console.run_script(file, str(path), keep_going=keep_going)
    except (OSError, UnicodeError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        typer.echo(f"{path} cannot be read: {error}", err=True)
        return False


def _interact(herd: "Herd", console: "Console") -> None:
    from herdbook.cli.sql_typing import Typing

    # A console that a script has started in the background finds interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    typer.echo("Statements end with ; and \\? helps.")
    typing = Typing(console, lambda name: herd.connect(name, autocommit=True))
    try:
        console.interact(input, typing.remember)
    finally:
        typing.close()
