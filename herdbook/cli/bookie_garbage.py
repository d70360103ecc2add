"""`herdbook bookie gc`: bookies that ask before they forget, and the answer to them.

Invariants:
- Nothing is confirmed that no bookie asks for: a yes given beforehand would let anything go.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from engine.metadata.garbage_asks import GarbageAsk, GarbageAsks
from herdbook.cli.bookies import find_bookie
from herdbook.cli.store import AsJson, Url, plain, print_json, print_table, with_store

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient


def gc(
    bookie_id: Annotated[
        str | None, typer.Argument(help="The bookie's id, or its beginning. Default: all that ask.")
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Let it forget as many ledgers as it asks for."),
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show bookies that ask before they forget so many deleted ledgers, and answer them.

    More than a fifth of a bookie's ledgers at once may mean that the metadata store lost them. Look
    at `herdbook ledger ls` first. What was confirmed goes at the bookie's next round, within ten
    minutes.
    """
    if confirm and bookie_id is None:
        raise typer.BadParameter("name the bookie that asks", param_hint="--confirm")

    async def work(client: "LedgerClient") -> dict[str, GarbageAsk]:
        asks = GarbageAsks(client.store)
        if bookie_id is None:
            return await asks.all()
        name = (await find_bookie(client, bookie_id))["bookie"]
        if confirm:
            return {name: await asks.confirm(name)}
        held = await asks.read(name)
        return {} if held is None else {name: held.ask}

    found = with_store(url, work)
    if as_json:
        print_json([{"bookie": name, **plain(ask)} for name, ask in found.items()])
        return
    rows = (
        (name, f"{ask.doomed:,}", f"{ask.held:,}", f"{ask.confirmed:,}" if ask.confirmed else "")
        for name, ask in found.items()
    )
    print_table(("bookie", "ledgers to forget", "of", "confirmed"), rows)
