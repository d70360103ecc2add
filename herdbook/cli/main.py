"""The command `herdbook`.

Invariants:
- With `--json` standard output carries nothing but JSON; progress and errors go to the other one.
- Exit status 0: it worked; 1: it did not, and why is on standard error; 2: the call was wrong.
"""

from importlib.metadata import version
from typing import Annotated, Final

import typer

from herdbook.cli.late import Late, late

COMMANDS: Final = {
    "demo": Late(
        "herdbook.cli.demo:demo",
        "Store a real folder on three bookies, kill one of them, and read everything back.",
    ),
    "ledger": Late("herdbook.cli.ledger:app", "Look at ledgers, recover them, delete them."),
    "blob": Late(
        "herdbook.cli.blob:app",
        "Buckets and objects: put files and folders in, get them out.",
    ),
    "sql": Late(
        "herdbook.cli.sql:sql",
        "SQL: a console where a person sits, else statements from -c, -f or standard input.",
    ),
    "task": Late(
        "herdbook.cli.task:app", "Tasks: submit them, see what became of them, set their limits."
    ),
    "worker": Late(
        "herdbook.cli.worker:worker",
        "Run tasks until told to stop: SIGTERM drains, a second one ends what still runs.",
    ),
    "backup": Late(
        "herdbook.cli.backup:backup",
        "Write a tablespace, as it is now, into a new file. It works on meanwhile.",
    ),
    "restore": Late(
        "herdbook.cli.backup:restore",
        "Make a new tablespace of a backup, which is checked before the first row is written.",
    ),
    "restore-until": Late(
        "herdbook.cli.backup:restore_until",
        "Make a new tablespace of another one as it was after the transaction at a position.",
    ),
    "changes": Late(
        "herdbook.cli.backup:changes",
        "Show what was changed, as far back as it is kept: the position of each transaction, "
        "its rows.",
    ),
    "check-backup": Late(
        "herdbook.cli.backup:check_backup",
        "Read all of a backup, check every byte, and say what it holds. Changes nothing.",
    ),
    "store": Late(
        "herdbook.cli.whole_store:app",
        "A whole store: back it up, check it or a backup of it, make a new one of a backup.",
    ),
    "checkpoint": Late(
        "herdbook.cli.backup:checkpoint",
        "Write all tables of a tablespace into pages, beside all other work.",
    ),
    "export": Late(
        "herdbook.cli.backup:export",
        "Write the rows of a table or of a query, as of one moment, into a new file.",
    ),
    "import": Late(
        "herdbook.cli.backup:import_rows",
        'Add the rows of a file to a table. In CSV an empty field is NULL, "" an empty text.',
    ),
    "bookie": Late("herdbook.cli.bookie:app", "Run bookies, and look at those of a cluster."),
    "herd": Late(
        "herdbook.cli.herd:app", "Run a node of tablespaces, and see and move those of a cluster."
    ),
    "repair": Late(
        "herdbook.cli.repair:app",
        "See what is being repaired, and have it checked.",
    ),
    "pipeline": Late(
        "herdbook.cli.pipeline:app",
        "Jobs on Spark: load, export, check and count what a store holds.",
    ),
    "zookeeper": Late(
        "herdbook.cli.zookeeper:zookeeper",
        "Run a ZooKeeper server until it is told to stop. Its address is the first line printed.",
    ),
}

app = typer.Typer(
    cls=late(COMMANDS),
    rich_markup_mode=None,
    help="A replicated ledger, and what is built on it.",
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
        typer.Option("--version", help="Say which version this is.", callback=_say_version),
    ] = False,
) -> None:
    """A replicated ledger, and what is built on it."""


def main() -> None:
    """The entry point of the command."""
    app()
