"""`herdbook ledger`: look at the ledgers of a folder.

Invariants:
- Looking never fences a writer and never changes a ledger.
- With `--json` every line of standard output is one JSON object.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from engine import cluster
from engine.errors import EngineError
from engine.metadata.ledgers import LedgerMetadata
from engine.ports.system_loop import new_event_loop

R = TypeVar("R")

app = typer.Typer(help="Look at the ledgers of a folder.", no_args_is_help=True)

Data = Annotated[
    Path, typer.Option("--data", envvar="HERDBOOK_URL", help="The folder that holds the ledgers.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
LedgerId = Annotated[int, typer.Argument(help="The ledger's id.", min=0)]


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run on a loop of its own; an error of the engine ends the command with status 1."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(work)
    except EngineError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from error


@app.command("ls")
def list_ledgers(data: Data, as_json: AsJson = False) -> None:
    """List the ledgers."""
    _folder(data)

    async def facts() -> list[dict[str, Any]]:
        async with cluster.open(data) as ledgers:
            ids = await ledgers.list_ledgers()
            return [_facts(await ledgers.ledger_metadata(ledger_id)) for ledger_id in ids]

    found = run(facts())
    if as_json:
        for each in found:
            typer.echo(json.dumps(each))
        return
    table = Table("ledger", "state", "entries", "bytes", "quorums", "owner")
    for each in found:
        entries = "?" if each["last_entry"] is None else f"{each['last_entry'] + 1:,}"
        length = "?" if each["length"] is None else f"{each['length']:,}"
        quorums = "/".join(str(number) for number in each["quorums"])
        owner = each["custom"].get("owner", "")
        table.add_row(str(each["ledger"]), each["state"], entries, length, quorums, owner)
    Console().print(table)


@app.command("show")
def show_ledger(ledger_id: LedgerId, data: Data, as_json: AsJson = False) -> None:
    """Show all that the metadata store knows of one ledger."""
    _folder(data)

    async def facts() -> dict[str, Any]:
        async with cluster.open(data) as ledgers:
            return _facts(await ledgers.ledger_metadata(ledger_id))

    found = run(facts())
    if as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(show_header=False)
    for name, value in found.items():
        table.add_row(name, str(value))
    Console().print(table)


@app.command("read")
def read_ledger(
    ledger_id: LedgerId,
    data: Data,
    first: Annotated[int, typer.Option(help="The first entry.", min=0)] = 0,
    last: Annotated[int | None, typer.Option(help="The last entry. Default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the entries' bytes to standard output; with --json, one object with base64 a line."""
    _folder(data)

    async def read() -> None:
        async with (
            cluster.open(data) as ledgers,
            await ledgers.open_ledger(ledger_id, recover=False) as reader,
        ):
            end = reader.last_add_confirmed if last is None else last
            async for entry in reader.read(first, end):
                if as_json:
                    body = base64.b64encode(entry.body).decode()
                    typer.echo(json.dumps({"entry": entry.entry_id, "base64": body}))
                else:
                    sys.stdout.buffer.write(entry.body)
        sys.stdout.buffer.flush()

    run(read())


def _folder(data: Path) -> None:
    """Looking at a folder that is not there must not make one."""
    if not data.is_dir():
        raise typer.BadParameter(f"{data} is no folder", param_hint="--data")


def _facts(metadata: LedgerMetadata) -> dict[str, Any]:
    return {
        "ledger": metadata.ledger_id,
        "state": metadata.state.name,
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "quorums": [metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum],
        "degraded": metadata.degraded,
        "created_ms": metadata.created_ms,
        "fragments": [[fragment.first, *fragment.ensemble] for fragment in metadata.fragments],
        "custom": {name: _text(value) for name, value in metadata.custom.items()},
    }


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
