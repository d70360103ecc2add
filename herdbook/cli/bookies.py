"""`herdbook bookie ls|info|check|decommission`: the bookies of a store, from the outside.

Invariants:
- `ls`, `info` and `check` change nothing.
- A bookie that is known but not registered is shown: an operator looks for what is missing.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from engine.errors import EngineError, InvalidRequest
from engine.metadata.bookies import Bookies, Registration
from engine.metadata.garbage_asks import GarbageAsk, GarbageAsks
from engine.transport.address import TCP
from engine.transport.contract import BookieInfo
from herdbook.cli.ledger import read_all
from herdbook.cli.store import (
    AsJson,
    Url,
    called,
    print_facts,
    print_json,
    print_table,
    with_store,
)

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient

ANSWER_TIMEOUT_S: Final = 10.0
NO_QUESTION: Final = GarbageAsk(0, 0)

BookieId = Annotated[
    str, typer.Argument(help="The bookie's id, the beginning of it, or its host's name.")
]


def list_bookies(url: Url = None, as_json: AsJson = False) -> None:
    """List the bookies that are registered, and those that are known but away."""
    facts = with_store(url, _list)
    if as_json:
        print_json(facts)
        return
    columns = ("bookie", "state", "boot", "address", "gRPC", "rack")
    names = ("state", "boot", "address", "grpc", "rack")
    rows = ([_called(each), *(_cell(each[name]) for name in names)] for each in facts)
    print_table(columns, rows)


def show_bookie(bookie_id: BookieId, url: Url = None, as_json: AsJson = False) -> None:
    """Ask one bookie who it is and how full its disk is, and count its ledgers.

    Exit status 1 if it does not answer, or is not what it should be.
    """

    async def show(client: "LedgerClient") -> dict[str, Any]:
        facts = await find_bookie(client, bookie_id)
        facts.update(await _ask(client, facts))
        facts["ledgers"] = await _count_ledgers(client, facts["bookie"])
        return facts

    facts = with_store(url, show)
    if as_json:
        print_json([facts])
    else:
        print_facts(_readable(facts))
    if facts["problem"]:
        raise typer.Exit(1)


def check_bookies(
    bookie_ids: Annotated[
        list[str] | None, typer.Argument(help="Bookies' ids. Default: all that are known.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Ask bookies whether they serve; exit status 1 if any does not, or is not what it should be.

    Their folders, byte by byte, are checked by `python -m engine.bookie check DIR`.
    """

    async def check(client: "LedgerClient") -> list[dict[str, Any]]:
        if bookie_ids:
            facts = [await find_bookie(client, bookie_id) for bookie_id in bookie_ids]
        else:
            facts = await _list(client)
        answers = await asyncio.gather(*(_ask(client, each) for each in facts))
        return [{**each, **answer} for each, answer in zip(facts, answers, strict=True)]

    checked = with_store(url, check)
    if as_json:
        print_json(checked)
    else:
        print_table(
            ("bookie", "state", "answer", "latency", "free"),
            ([_called(each), each["state"], *_answer(each)] for each in checked),
        )
    if any(each["problem"] for each in checked):
        raise typer.Exit(1)


async def _list(client: "LedgerClient") -> list[dict[str, Any]]:
    bookies = Bookies(client.store)
    registered = await bookies.available()
    leaving = set(await bookies.decommissioning())
    asks = await GarbageAsks(client.store).all()
    names = sorted({*registered, *await bookies.known()})
    return [
        _facts(name, registered.get(name), name in leaving, asks.get(name, NO_QUESTION))
        for name in names
    ]


async def find_bookie(client: "LedgerClient", bookie_id: str) -> dict[str, Any]:
    """The bookie whose id is this or begins so, or whose host is called so.

    Raises `InvalidRequest` if there is not one.
    """
    facts = await _list(client)
    found = [each for each in facts if each["bookie"] == bookie_id]
    found = found or [each for each in facts if each["bookie"].startswith(bookie_id)]
    found = found or [each for each in facts if each["host"] == bookie_id]
    if len(found) != 1:
        many = f"{len(found)} bookies begin with" if found else "there is no bookie"
        raise InvalidRequest(f"{many} {bookie_id!r}: `herdbook bookie ls` lists them")
    return found[0]


def _called(facts: dict[str, Any]) -> str:
    return called(facts["host"], facts["bookie"])


def _cell(value: object) -> str:
    """A value for people: all addresses are TCP's, and 0 starts are none that are known."""
    return str(value or "").removeprefix(TCP)


def _readable(facts: dict[str, Any]) -> dict[str, str]:
    """The facts of one bookie for people; what is not known is left out."""
    problem, latency, free = _answer(facts)
    shown = {name: _cell(facts[name]) for name in ("bookie", "state", "boot", "address")}
    shown |= {"gRPC": facts["grpc"], "host": facts["host"]}
    shown |= {"rack": facts["rack"], "zone": facts["zone"]}
    shown |= {"answer": problem, "latency": latency, "free": free}
    shown["ledgers"] = f"{facts['ledgers']:,}"
    return {name: value for name, value in shown.items() if value}


def _facts(name: str, found: Registration | None, leaving: bool, ask: GarbageAsk) -> dict[str, Any]:
    if found is None:
        state = "away"
        found = Registration(name, 0)
    else:
        state = "writable" if found.writable else "read-only"
    state += ", leaving" if leaving else ""
    state += ", asks (bookie gc)" if ask.doomed > ask.confirmed else ""
    return {
        "bookie": name,
        "state": state,
        "registered": found.boot > 0,
        "leaving": leaving,
        "garbage_asked": ask.doomed,
        "boot": found.boot,
        "address": found.address,
        "grpc": found.grpc,
        "host": found.host,
        "rack": found.rack,
        "zone": found.zone,
    }


async def _ask(client: "LedgerClient", facts: dict[str, Any]) -> dict[str, Any]:
    """What a bookie says of itself, and what is wrong with that."""
    answer: dict[str, Any] = {"latency_ms": None, "total_bytes": None, "free_bytes": None}
    if not facts["registered"]:
        return {**answer, "problem": "" if facts["leaving"] else "not registered"}
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            bookie = await client.transport.connect(facts["bookie"])
            begun_s = client.clock.monotonic()
            info = await bookie.info()
    except TimeoutError:
        return {**answer, "problem": f"no answer in {ANSWER_TIMEOUT_S:.0f} s"}
    except EngineError as error:
        return {**answer, "problem": f"{type(error).__name__}: {error}"}
    answer["latency_ms"] = round((client.clock.monotonic() - begun_s) * 1000, 3)
    answer["total_bytes"], answer["free_bytes"] = info.total_bytes, info.free_bytes
    return {**answer, "problem": _problem(client, facts, info)}


def _problem(client: "LedgerClient", facts: dict[str, Any], info: BookieInfo) -> str:
    if info.bookie_id != facts["bookie"]:
        return f"bookie {info.bookie_id} answered in its place"
    if info.cluster_id != client.store.cluster_id:
        return f"it belongs to cluster {info.cluster_id}"
    if info.boot != facts["boot"]:
        return f"start {info.boot} answered, start {facts['boot']} is registered"
    full = f"its disk is full ({info.free_bytes:,} bytes are free): it accepts no new data"
    return "" if info.writable else full


def _answer(each: dict[str, Any]) -> tuple[str, str, str]:
    latency = "" if each["latency_ms"] is None else f"{each['latency_ms']:.1f} ms"
    free = ""
    if each["free_bytes"] is not None:
        free = f"{decimal(each['free_bytes'])} of {decimal(each['total_bytes'])}"
    serves = "serves" if each["registered"] else "has gone, as it was to"
    return (each["problem"] or serves, latency, free)


async def _count_ledgers(client: "LedgerClient", bookie_id: str) -> int:
    return sum(bookie_id in metadata.bookies() for metadata in await read_all(client))
