"""`herdbook ledger`: look at the ledgers of a store, recover them, delete them.

Invariants:
- `ls`, `show` and `read` never fence a writer and never change a ledger.
- With `--json` every line of standard output is one JSON object.
- Nothing is deleted without a yes, by hand or by `--yes`.
- A ledger whose metadata cannot be read hides no other one, and is never left out of a list.
"""

import asyncio
import base64
import json
import sys
from collections.abc import Container
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engine.access.owners import keeper_of
from engine.errors import CannotRead, FormatTooNew, InvalidRequest, NoSuchLedger
from engine.ledger.spreading import Flaw, Where, flaws_of
from engine.metadata.bookies import Bookies
from engine.metadata.ledgers import LedgerMetadata, State
from herdbook.cli.store import (
    AsJson,
    LedgerId,
    Url,
    moment_of,
    print_facts,
    print_json,
    print_table,
    progress,
    with_store,
)
from herdbook.cli.working import Working

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient

ASKED_AT_ONCE: Final = 64
_UNREADABLE: Final = "UNREADABLE"

app = typer.Typer(
    help="List, read, recover and delete ledgers.", no_args_is_help=True, rich_markup_mode=None
)

Password = Annotated[
    str,
    typer.Option(help="The ledger's password.", envvar="HERDBOOK_LEDGER_PASSWORD"),
]


@app.command("ls")
def list_ledgers(
    url: Url = None,
    degraded: Annotated[
        bool, typer.Option("--degraded", help="Only those that wait for a replica.")
    ] = False,
    bookie: Annotated[
        str | None,
        typer.Option(
            help="Only those on this bookie: its id, the beginning of it, or its host's name."
        ),
    ] = None,
    after: Annotated[
        int, typer.Option(help="Only ids above this one: the last one of the page before.", min=-1)
    ] = -1,
    limit: Annotated[
        int | None, typer.Option(help="Look at so many ledgers at most. Default: all.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the ledgers, and how many of each one's bookies are up.

    One whose metadata cannot be read is listed, too, whatever is asked for: nobody can tell.
    """
    unreadable: dict[int, str] = {}

    from herdbook.cli.bookies import find_bookie

    async def look(client: "LedgerClient") -> tuple[list[LedgerMetadata], Where, str | None]:
        name = None if bookie is None else (await find_bookie(client, bookie))["bookie"]
        found = await read_all(client, unreadable, after, limit)
        return found, await Bookies(client.store).available(), name

    found, up, name = with_store(url, look)
    if degraded:
        found = [metadata for metadata in found if metadata.degraded]
    if name is not None:
        found = [metadata for metadata in found if name in metadata.bookies()]
    facts = [{**_facts(metadata), **_placed(metadata, up)} for metadata in found]
    _print_ledgers(facts, unreadable, as_json)


def _print_ledgers(facts: list[dict[str, Any]], unreadable: dict[int, str], as_json: bool) -> None:
    if as_json:
        facts += [
            {"ledger": ledger_id, "state": _UNREADABLE, "why": why}
            for ledger_id, why in unreadable.items()
        ]
        print_json(sorted(facts, key=itemgetter("ledger")))
        return
    columns = ("ledger", "state", "entries", "bytes", "quorums", "replicas", "owner")
    rows = [_row(each) for each in facts]
    rows += [(str(each), _UNREADABLE, "?", "?", "", "", "") for each in unreadable]
    rows.sort(key=lambda row: int(row[0]))
    print_table(columns, rows)
    for ledger_id, why in sorted(unreadable.items()):
        typer.echo(f"ledger {ledger_id}: {why}", err=True)


@app.command("show")
def show_ledger(ledger_id: LedgerId, url: Url = None, as_json: AsJson = False) -> None:
    """Show all that the metadata store knows of one ledger, and replicas that may fail together."""

    async def show(client: "LedgerClient") -> dict[str, Any]:
        metadata = await client.ledger_metadata(ledger_id)
        return {**_facts(metadata), **_placed(metadata, await Bookies(client.store).available())}

    facts = with_store(url, show)
    if as_json:
        print_json([facts])
    else:
        print_facts(_readable(facts))


@app.command("read")
def read_ledger(
    ledger_id: LedgerId,
    url: Url = None,
    first: Annotated[int, typer.Option(help="The first entry.", min=0)] = 0,
    last: Annotated[int | None, typer.Option(help="The last entry. Default: all.")] = None,
    password: Password = "",
    as_json: AsJson = False,
) -> None:
    """Write the entries' bytes to standard output; with --json, one object with base64 a line."""

    async def read(client: "LedgerClient") -> None:
        opening = client.open_ledger(ledger_id, password=password.encode(), recover=False)
        async with await opening as reader:
            if not reader.closed:
                # Nobody's word is no word: an end that nobody could tell is not "empty".
                await reader.read_last_add_confirmed()
            end = reader.last_add_confirmed if last is None else last
            async for entry in reader.read(first, end):
                if as_json:
                    body = base64.b64encode(entry.body).decode()
                    typer.echo(json.dumps({"entry": entry.entry_id, "base64": body}))
                else:
                    sys.stdout.buffer.write(entry.body)
        sys.stdout.buffer.flush()

    with_store(url, read)


@app.command("recover")
def recover_ledger(
    ledger_id: LedgerId, url: Url = None, password: Password = "", as_json: AsJson = False
) -> None:
    """Fence a ledger's writer, find the ledger's end, and close it there."""

    async def recover(client: "LedgerClient") -> LedgerMetadata:
        async with await client.open_ledger(ledger_id, password=password.encode()):
            return await client.ledger_metadata(ledger_id)

    with Working("recovering"):
        facts = _facts(with_store(url, recover))
    if as_json:
        print_json([facts])
    else:
        entries = facts["last_entry"] + 1
        typer.echo(f"ledger {ledger_id} is closed with {entries:,} entries")


@app.command("delete")
def delete_ledgers(
    ledger_ids: Annotated[list[int], typer.Argument(help="The ledgers' ids.", min=0)],
    url: Url = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also those of objects, tables and tasks: they lose them."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete ledgers for ever. Bookies give their bytes back later.

    A ledger that belongs to objects, tables or tasks is deleted by these when nothing needs it.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("nobody is there to ask: say --yes")
        numbers = ", ".join(map(str, ledger_ids))
        typer.confirm(f"Delete {numbers} for ever?", abort=True, err=True)

    async def delete(client: "LedgerClient") -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        if not force:
            await _refuse_owned(client, ledger_ids)
        for ledger_id in ledger_ids:
            try:
                await client.delete_ledger(ledger_id)
                done.append({"ledger": ledger_id, "deleted": True})
            except NoSuchLedger:
                done.append({"ledger": ledger_id, "deleted": False})
        return done

    done = with_store(url, delete)
    if as_json:
        print_json(done)
    for each in done:
        if not each["deleted"]:
            typer.echo(f"NoSuchLedger: ledger {each['ledger']} does not exist", err=True)
        elif not as_json:
            typer.echo(f"ledger {each['ledger']} is deleted")
    if not all(each["deleted"] for each in done):
        raise typer.Exit(1)


async def _refuse_owned(client: "LedgerClient", ledger_ids: list[int]) -> None:
    """End the command before any is deleted, if one belongs to somebody."""
    for ledger_id in ledger_ids:
        try:
            keeper = keeper_of((await client.ledger_metadata(ledger_id)).custom)
        except NoSuchLedger:
            continue
        except (CannotRead, FormatTooNew) as error:
            raise InvalidRequest(
                f"ledger {ledger_id}: {error}, so nobody can tell whose it is; nothing was deleted "
                "(--force deletes a damaged one all the same)"
            ) from error
        if keeper:
            raise InvalidRequest(
                f"ledger {ledger_id} belongs to {keeper}, which deletes "
                "it when nothing needs it any more; nothing was deleted (--force does it all the "
                "same, and what lies in it is lost)"
            )


async def read_all(
    client: "LedgerClient",
    unreadable: dict[int, str] | None = None,
    after: int = -1,
    limit: int | None = None,
) -> list[LedgerMetadata]:
    """The metadata of every ledger above `after`, some at a time; at most `limit`.

    One deleted meanwhile is left out.

    What cannot be read is noted in `unreadable`, with the reason. Without it: raises `CannotRead`,
    `FormatTooNew`.
    """
    found: list[LedgerMetadata] = []

    async def one(ledger_id: int) -> LedgerMetadata | None:
        try:
            return await client.ledger_metadata(ledger_id)
        except NoSuchLedger:
            return None
        except (CannotRead, FormatTooNew) as error:
            if unreadable is None:
                raise
            unreadable[ledger_id] = str(error)
            return None

    ledger_ids = await client.list_ledgers(after=after, limit=limit)
    with progress() as bar:
        task = bar.add_task("ledgers", total=len(ledger_ids))
        for start in range(0, len(ledger_ids), ASKED_AT_ONCE):
            page = ledger_ids[start : start + ASKED_AT_ONCE]
            read = await asyncio.gather(*map(one, page))
            found += [metadata for metadata in read if metadata is not None]
            bar.advance(task, len(page))
    return found


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    entries = "?" if facts["last_entry"] is None else f"{facts['last_entry'] + 1:,}"
    length = "?" if facts["length"] is None else f"{facts['length']:,}"
    quorums = "/".join(str(number) for number in facts["quorums"])
    up, size = facts["bookies_up"], facts["quorums"][0]
    parts = [f"{up} of {size} up"] if up < size else []
    if facts["degraded"]:
        # While a ledger is open its writer, not this note, knows whether it still is.
        parts.append("one missing" if facts["state"] == State.CLOSED.name else "one was missing")
    parts += ["not apart"] if facts["badly_placed"] else []
    replicas = ", ".join(parts) or "all"
    owner = facts["custom"].get("owner", "")
    return (str(facts["ledger"]), facts["state"], entries, length, quorums, replicas, owner)


def _placed(metadata: LedgerMetadata, where: Where) -> dict[str, Any]:
    """Which bookies of a ledger are there, and which of them may fail together."""
    found: list[Flaw] = []
    for fragment in metadata.fragments:
        found += flaws_of(fragment.ensemble, metadata.write_quorum, where)
    placed = [flaw._asdict() for flaw in dict.fromkeys(found)]
    return {"bookies_up": bookies_up(metadata, where), "badly_placed": placed}


def bookies_up(metadata: LedgerMetadata, up: Container[str]) -> int:
    """How many bookies of the fragment that is worst off are registered now."""
    return min(sum(name in up for name in each.ensemble) for each in metadata.fragments)


def _readable(facts: dict[str, Any]) -> dict[str, str]:
    """The facts of one ledger for people."""
    _, state, entries, length, quorums, replicas, _ = _row(facts)
    fragments = [f"from {first}: {', '.join(names)}" for first, *names in facts["fragments"]]
    flaws = [
        f"one {flaw['domain']}, {flaw['name']}: {', '.join(flaw['bookies'])}"
        for flaw in facts["badly_placed"]
    ]
    return {
        "ledger": str(facts["ledger"]),
        "state": state,
        "entries": "not known while it is open" if entries == "?" else entries,
        "bytes": "not known while it is open" if length == "?" else length,
        "ensemble/write/ack quorum": quorums,
        "acknowledged entries survive": _survived(facts),
        "replicas": replicas,
        "created": moment_of(facts["created_ms"]),
        "fragments": "\n".join(fragments),
        "metadata": "\n".join(f"{name}: {value}" for name, value in facts["custom"].items()),
        "may fail together": "\n".join(flaws) or "no two replicas",
    }


def _survived(facts: dict[str, Any]) -> str:
    """The loss that the entries of the last fragment survive, for people."""
    if facts["quorums"][2] == 1:
        return "no loss while only one bookie has them: the ack quorum is 1"
    if facts["survives"] != "bookie" and not facts["apart"]:
        since = facts["fragments"][-1][0]
        return f"the loss of a bookie; from entry {since} on not that of a {facts['survives']}"
    return f"the loss of a {facts['survives']}"


def _facts(metadata: LedgerMetadata) -> dict[str, Any]:
    return {
        "ledger": metadata.ledger_id,
        "state": metadata.state.name,
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "quorums": [metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum],
        "survives": metadata.survives,
        "strict": metadata.strict,
        "apart": bool(metadata.fragments[-1].domains),
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
