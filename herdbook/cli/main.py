"""The command `herdbook`.

Invariants:
- With `--json` standard output carries nothing but JSON; progress and errors go to the other one.
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
- An error is a line, never a traceback, unless one is asked for.
"""

import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from engine.errors import DiskFull, InvalidRequest
from engine.metadata.zookeeper_settings import WAITING_LOG
from engine.ports.clock import SystemClock
from engine.ports.system_disk import FULL, disk_full_error
from engine.slow import configure_from
from herdbook.cli.examples import epilog_of
from herdbook.cli.late import Late, late

TRACEBACK_VARIABLE: Final = "HERDBOOK_TRACEBACK"
_START: Final = "Start"
_DATA: Final = "Data"
_TASKS: Final = "Tasks"
_OPERATE: Final = "Operate"
_DEVELOP: Final = "Develop"

COMMANDS: Final = {
    "demo": Late(
        "herdbook.cli.demo:demo",
        "Run a mailing platform's day; two of its nodes are killed.",
        _START,
    ),
    "dev": Late(
        "herdbook.cli.dev:dev",
        "Run a whole cluster on this machine, to try things out.",
        _START,
    ),
    "serve": Late(
        "herdbook.cli.serve:serve",
        "Serve a folder, or as a node of a cluster.",
        _START,
    ),
    "completion": Late(
        "herdbook.cli.completion:completion",
        "Print what makes a shell complete this command's words.",
        _START,
    ),
    "sql": Late(
        "herdbook.cli.sql:sql", "Run SQL at a console, or from -c, -f or standard input.", _DATA
    ),
    "blob": Late(
        "herdbook.cli.blob:app",
        "Buckets and objects: put files and folders in, get them out.",
        _DATA,
    ),
    "ledger": Late("herdbook.cli.ledger:app", "List, read, recover and delete ledgers.", _DATA),
    "import": Late(
        "herdbook.cli.backup:import_rows",
        'Add the rows of a file to a table. In CSV an empty field is NULL, "" an empty text.',
        _DATA,
    ),
    "export": Late(
        "herdbook.cli.backup:export",
        "Write the rows of a table or a query into a new file. All are of one moment.",
        _DATA,
    ),
    "changes": Late(
        "herdbook.cli.backup:changes",
        "Show what was changed, as far back as it is kept. Each transaction has its position.",
        _DATA,
    ),
    "task": Late("herdbook.cli.task:app", "Submit tasks, follow them, set limits.", _TASKS),
    "worker": Late(
        "herdbook.cli.worker:worker",
        "Run tasks until told to stop. SIGTERM drains, a second one ends what still runs.",
        _TASKS,
    ),
    "bookie": Late(
        "herdbook.cli.bookie:app", "Run bookies, and look at those of a cluster.", _OPERATE
    ),
    "herd": Late(
        "herdbook.cli.herd:app",
        "Run a node of tablespaces; see and move those of a cluster.",
        _OPERATE,
    ),
    "user": Late(
        "herdbook.cli.user:app", "Manage the users of a store, their rights and tokens.", _OPERATE
    ),
    "repair": Late(
        "herdbook.cli.repair:app", "Show what is being repaired, and start checks.", _OPERATE
    ),
    "store": Late(
        "herdbook.cli.whole_store:app",
        "Back up, check, restore or upgrade a whole store.",
        _OPERATE,
    ),
    "backup": Late(
        "herdbook.cli.backup:backup",
        "Write a tablespace, as it is now, into a new file. It works on meanwhile.",
        _OPERATE,
    ),
    "check-backup": Late(
        "herdbook.cli.backup:check_backup",
        "Check every byte of a backup file, and say what it holds. Changes nothing.",
        _OPERATE,
    ),
    "restore": Late(
        "herdbook.cli.backup:restore",
        "Make a new tablespace of a backup file. All of it is checked before the first row is "
        "written.",
        _OPERATE,
    ),
    "restore-until": Late(
        "herdbook.cli.backup:restore_until",
        "Make a new tablespace of another as it was at a position.",
        _OPERATE,
    ),
    "checkpoint": Late(
        "herdbook.cli.backup:checkpoint",
        "Write all tables of a tablespace into pages. Other work goes on meanwhile.",
        _OPERATE,
    ),
    "pipeline": Late(
        "herdbook.cli.pipeline:app",
        "Jobs on Spark: load, export, check, count what a store holds.",
        _DEVELOP,
    ),
    "zookeeper": Late(
        "herdbook.cli.zookeeper:zookeeper",
        "Run a ZooKeeper server until it is told to stop. Its address is the first line printed.",
        _DEVELOP,
    ),
}
"""By heading, in the order in which a newcomer needs them."""

app = typer.Typer(
    cls=late(COMMANDS),
    rich_markup_mode=None,
    help="A replicated ledger, and what is built on it.",
    epilog=epilog_of(()),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"herdbook {version('herdbook')}")
        raise typer.Exit


@app.callback()
def root(
    shown: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_say_version),
    ] = False,
) -> None:
    """A replicated ledger, and what is built on it."""


def main() -> None:
    """The entry point of the command."""
    try:
        configure_from(os.environ, SystemClock())
    except InvalidRequest as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None
    if "--json" in sys.argv:
        logging.getLogger(WAITING_LOG).setLevel(logging.ERROR)
    try:
        app()
    except Exception as error:
        # Whoever types a command is told what is wrong; whoever mends it wants to know where.
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        if isinstance(error, OSError) and error.errno in FULL and not isinstance(error, DiskFull):
            error = disk_full_error(Path(error.filename or Path.cwd()))
        said = " ".join(str(error).split())
        typer.echo(f"{type(error).__name__}: {said} ({TRACEBACK_VARIABLE}=1 shows where)", err=True)
        raise SystemExit(1) from None
