"""`herdbook backup`, `restore`, `restore-until`, `changes`, `check-backup`, `checkpoint`, `export`
and `import`.

Invariants:
- A tablespace works on while it is backed up or exported.
- Nothing overwrites a file or a tablespace that is there.
- With `--json` standard output is one JSON object, or one a change.
"""

import json
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from engine.errors import EngineError
from herdbook.cli.sql import Create, Tablespace, ending_quietly, opened
from herdbook.cli.store import AsJson, moment_of, print_facts, print_table, with_store
from herdbook.cli.working import Working, aside

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient
    from engine.log import Position
    from herd.changes import CommittedTransaction
    from herd.checkpoint.manifest import Manifest

Folder = Annotated[
    str, typer.Argument(metavar="FOLDER|URL", help="The store: a folder, or a cluster's url.")
]
BackupFile = Annotated[Path, typer.Argument(help="The file of the backup.")]


def backup(
    store: Folder, file: BackupFile, tablespace: Tablespace = "default", as_json: AsJson = False
) -> None:
    """Write a tablespace, as it is now, into a new file. It works on meanwhile."""
    if file.exists():
        _fail(f"{file} is there already: a backup overwrites nothing")
    with opened(store) as herd, Working("backing up"):
        try:
            herd.back_up(file.absolute(), tablespace)
        except OSError as error:
            _fail(f"{file} cannot be written: {error.strerror or error}")
    _say({"file": str(file), "bytes": file.stat().st_size}, as_json, f"{file} is written")


def restore(
    file: BackupFile,
    store: Folder,
    name: Annotated[str, typer.Argument(help="The new tablespace.")],
    create: Create = False,
    as_json: AsJson = False,
) -> None:
    """Make a new tablespace of a backup file. All of it is checked before the first row is written.

    The file is read where the command runs. In a cluster it needs room there for temporary files,
    and the tablespace appears when all of it is there.
    """
    manifest = _checked(file)
    with opened(store, create=create) as herd, Working("restoring"):
        herd.restore(file.absolute(), name)
    facts = _facts(manifest)
    rows, tables = facts["rows"], len(facts["tables"])
    text = (
        f"tablespace {name} holds {rows:,} {'row' if rows == 1 else 'rows'} "
        f"in {tables} {'table' if tables == 1 else 'tables'}"
    )
    _say({**facts, "tablespace": name}, as_json, text)


def restore_until(
    store: Folder,
    source: Annotated[str, typer.Argument(help="The tablespace whose past is wanted.")],
    position: Annotated[
        str, typer.Argument(metavar="LEDGER/ENTRY", help="Its last transaction that counts.")
    ],
    name: Annotated[str, typer.Argument(help="The new tablespace.")],
    as_json: AsJson = False,
) -> None:
    """Make a new tablespace of another as it was at a position.

    That is after the transaction there; `herdbook changes` shows positions. It begins with a
    checkpoint that is kept, and needs the log from there on. In a cluster an empty tablespace may
    be there already.
    """
    until = position_of(position)
    with opened(store) as herd, Working("restoring"):
        herd.restore_until(source, until, name)
    facts = {"tablespace": name, "ledger": until.ledger, "entry": until.entry}
    _say(facts, as_json, f"tablespace {name} is {source} as it was at {position}")


def changes(
    store: Folder,
    tablespace: Tablespace = "default",
    after: Annotated[
        str | None,
        typer.Option(metavar="LEDGER/ENTRY", help="Those after this position alone."),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Those of this table alone. Repeat it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was changed, as far back as it is kept. Each transaction has its position.

    It ends with what is committed now.
    """
    from engine.log import START, ReplicatedLog
    from herd.changes import changes as following
    from herd.errors import Error
    from herd.reading_log import log_of

    begin = START if after is None else position_of(after)

    async def follow(client: "LedgerClient") -> None:
        log = ReplicatedLog(client, log_of(tablespace.lower()))
        last = await log.end()
        read = following(client, tablespace.lower(), begin, last=last, tables=table or ())
        async with aclosing(read) as transactions:
            async for transaction in transactions:
                _tell(transaction, as_json)

    try:
        with ending_quietly():
            with_store(store, follow)
    except Error as error:
        _fail(f"{type(error).__name__}: {error}")


def position_of(text: str) -> "Position":
    """A position as people write it. Ends the command for anything else."""
    ledger, slash, entry = text.partition("/")
    if not (slash and ledger.isdecimal() and entry.isdecimal()):
        raise typer.BadParameter(f"{text!r} is no position: ledger/entry, as in 12/345")
    from engine.log import Position

    return Position(int(ledger), int(entry))


def _tell(transaction: "CommittedTransaction", as_json: bool) -> None:
    ledger, entry = transaction.position
    for change in transaction.changes:
        kind, row, key = change.kind.value, change.row, change.key_row
        if as_json:
            facts = {"ledger": ledger, "entry": entry, "table": change.table.name, "kind": kind}
            rows = {"key": key, "row": row, "before": change.before}
            typer.echo(msgspec.json.encode({**facts, **rows}, enc_hook=str).decode())
            continue
        told = row or key or {}
        shown = ", ".join(f"{name} = {value!r}" for name, value in told.items())
        typer.echo(f"{ledger}/{entry}  {change.table.name}  {kind}  {shown}".rstrip())


def check_backup(file: BackupFile, as_json: AsJson = False) -> None:
    """Check every byte of a backup file, and say what it holds. Changes nothing."""
    facts = _facts(_checked(file))
    if as_json:
        typer.echo(json.dumps(facts))
        return
    print_facts(
        {
            "file": f"{file}, {file.stat().st_size:,} bytes",
            "tablespace": facts["tablespace"],
            "taken": moment_of(facts["taken_ms"]),
            "position": f"ledger {facts['ledger']}, entry {facts['entry']}",
            "views": ", ".join(facts["views"]) or "none",
        }
    )
    rows = [(each["name"], f"{each['rows']:,}", each["pages"]) for each in facts["tables"]]
    print_table(("table", "rows", "pages"), rows)


def checkpoint(store: Folder, tablespace: Tablespace = "default", as_json: AsJson = False) -> None:
    """Write all tables of a tablespace into pages. Other work goes on meanwhile."""
    with (
        opened(store) as herd,
        herd.connect(tablespace, autocommit=True) as connection,
        Working("writing pages"),
    ):
        connection.execute("CHECKPOINT")
    _say({"tablespace": tablespace}, as_json, f"{tablespace} has a new checkpoint")


def export(
    store: Folder,
    what: Annotated[str, typer.Argument(help="A table, or a query in quotes.")],
    file: Annotated[Path, typer.Argument(help=".csv, .jsonl, .parquet, .arrow or .feather")],
    tablespace: Tablespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write the rows of a table or a query into a new file. All are of one moment."""
    from herdbook.cli.sql_copying import write_rows

    query = what if len(what.split()) > 1 else f"SELECT * FROM {what}"
    with (
        opened(store) as herd,
        herd.connect(tablespace, autocommit=True) as connection,
        Working("exporting") as working,
    ):
        try:
            count = write_rows(connection, query, file, working.done)
        except OSError as error:
            _fail(f"{file} cannot be written: {error.strerror or error}")
    _say({"file": str(file), "rows": count}, as_json, f"{count:,} rows are in {file}")


def import_rows(
    store: Folder,
    table: Annotated[str, typer.Argument(help="The table, which must be there.")],
    file: Annotated[
        Path,
        typer.Argument(
            help=".csv, whose first line names columns, .parquet, .arrow or .feather.",
        ),
    ],
    tablespace: Tablespace = "default",
    commit_rows: Annotated[
        int,
        typer.Option(help="Commit every so many rows. Default: all rows or none.", min=0),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Add the rows of a file to a table. In CSV an empty field is NULL, "" an empty text."""
    from herdbook.cli.sql_copying import add_rows

    with (
        opened(store) as herd,
        herd.connect(tablespace, autocommit=True) as connection,
        Working("importing") as working,
    ):
        try:
            count = add_rows(connection, table, file, commit_rows=commit_rows, tell=working.done)
        except OSError as error:
            _fail(f"{file} cannot be read: {error.strerror or error}")
    _say({"table": table, "rows": count}, as_json, f"{count:,} rows were added to {table}")


def _checked(file: Path) -> "Manifest":
    from herd.backup import check_backup as check

    try:
        with Working("checking"):
            return check(file)
    except EngineError as error:
        _fail(f"{type(error).__name__}: {error}")
    except OSError as error:
        _fail(f"{file} cannot be read: {error.strerror or error}")


def _facts(manifest: "Manifest") -> dict[str, Any]:
    pages = {each.table_id: each for each in manifest.pages}
    tables = [
        {
            "name": table.name,
            "rows": pages[table.id].rows if table.id in pages else 0,
            "pages": len(pages[table.id].pages) if table.id in pages else 0,
        }
        for table in sorted(manifest.tables, key=lambda table: table.name.lower())
    ]
    return {
        "tablespace": manifest.tablespace,
        "taken_ms": manifest.taken_ms,
        "ledger": manifest.position.ledger,
        "entry": manifest.position.entry,
        "rows": sum(each.rows for each in manifest.pages),
        "tables": tables,
        "views": [view.name for view in manifest.views],
    }


def _say(facts: dict[str, Any], as_json: bool, text: str) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


def _fail(text: str) -> NoReturn:
    with aside():
        typer.echo(text, err=True)
    raise typer.Exit(1)
