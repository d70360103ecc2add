"""`/api/v1/ledgers`: what the metadata store knows of ledgers.

Invariants:
- Looking fences no writer and changes nothing.
- A ledger that belongs to objects, tables or tasks is deleted by these, unless it is forced.
- One whose metadata cannot be read is in the list all the same, and says why.
"""

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from broker.http.routes import Told
from broker.http.shapes import Changed
from broker.spec import Id
from engine.access.owners import keeper_of
from engine.errors import CannotRead, FormatTooNew, NoSuchLedger
from engine.ledger.spreading import flaws_of
from engine.metadata.bookies import Bookies
from engine.metadata.ledgers import LEDGERS, LedgerMetadata
from herdbook.http.errors import HttpError
from herdbook.http.house import House
from herdbook.http.routes import ADMIN, Ask, Route

_AT_ONCE: Final = 64
UNREADABLE: Final = "unreadable"


class FragmentFacts(msgspec.Struct):
    """From which entry on which bookies have the entries."""

    first: int
    ensemble: tuple[str, ...]


class LedgerFacts(msgspec.Struct):
    """A ledger. `last_entry` and `length` are null while it is open; `state` may be unreadable.

    `bookies_up` counts the bookies that are registered, of the fragment that is worst off.
    """

    ledger_id: int
    state: str
    last_entry: int | None = None
    length: int | None = None
    ensemble: int = 0
    write_quorum: int = 0
    ack_quorum: int = 0
    bookies_up: int = 0
    degraded: bool = False
    created_ms: int = 0
    owner: str = ""
    problem: str = ""


class LedgerList(msgspec.Struct):
    """A page of ledgers. `after` goes on where it ended, null at the end.

    `total` counts all ledgers; it is null if the metadata store lists them in several pages.
    """

    ledgers: list[LedgerFacts]
    after: int | None
    total: int | None


class WholeLedger(LedgerFacts, kw_only=True):
    """A ledger with its fragments, and with replicas that may fail together."""

    fragments: list[FragmentFacts]
    metadata: dict[str, str]
    badly_placed: list[str]


class LedgersQuery(msgspec.Struct):
    """Ledgers with ids above `after`."""

    after: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100


class DeleteQuery(msgspec.Struct):
    """`force` deletes also what belongs to objects, tables or tasks: they lose it."""

    force: bool = False


async def list_ledgers(house: House, ask: Ask) -> Told:
    """A page of them."""
    limit = ask.query.limit
    oldest = await house.ledgers.store.page(LEDGERS)
    ids = [each for each in oldest.numbers if each > ask.query.after]
    if len(ids) <= limit and oldest.more:
        ids = await house.ledgers.list_ledgers(after=ask.query.after, limit=limit + 1)
    page = ids[:limit]
    up = frozenset(await Bookies(house.ledgers.store).available())
    told: list[LedgerFacts] = []
    for first in range(0, len(page), _AT_ONCE):
        some = page[first : first + _AT_ONCE]
        told += filter(None, await asyncio.gather(*(_one(house, each, up) for each in some)))
    more = page[-1] if len(ids) > limit else None
    return Told(LedgerList(told, more, None if oldest.more else len(oldest.numbers)))


async def _one(house: House, ledger_id: int, up: frozenset[str]) -> LedgerFacts | None:
    try:
        metadata = await house.ledgers.ledger_metadata(ledger_id)
    except NoSuchLedger:
        return None
    except (CannotRead, FormatTooNew) as error:
        return LedgerFacts(ledger_id, UNREADABLE, problem=str(error))
    return _facts(metadata, up)


def _facts(metadata: LedgerMetadata, up: frozenset[str]) -> LedgerFacts:
    fewest = min(sum(name in up for name in each.ensemble) for each in metadata.fragments)
    return LedgerFacts(
        metadata.ledger_id,
        metadata.state.name.lower(),
        metadata.last_entry,
        metadata.length,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        fewest,
        metadata.degraded,
        metadata.created_ms,
        metadata.custom.get("owner", b"").decode(errors="replace"),
    )


async def show_ledger(house: House, ask: Ask) -> Told:
    """One ledger."""
    ledger_id = ask.path["id"]
    registered = await Bookies(house.ledgers.store).available()
    metadata = await house.ledgers.ledger_metadata(ledger_id)
    flaws = [
        f"one {flaw.domain}, {flaw.name}: {', '.join(flaw.bookies)}"
        for each in metadata.fragments
        for flaw in flaws_of(each.ensemble, metadata.write_quorum, registered)
    ]
    facts = msgspec.structs.asdict(_facts(metadata, frozenset(registered)))
    return Told(
        WholeLedger(
            **facts,
            fragments=[FragmentFacts(each.first, each.ensemble) for each in metadata.fragments],
            metadata={name: _text(value) for name, value in metadata.custom.items()},
            badly_placed=flaws,
        )
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


async def delete_ledger(house: House, ask: Ask) -> Told:
    """Delete one for ever."""
    ledger_id = ask.path["id"]
    if not ask.query.force:
        await _refuse_owned(house, ledger_id)
    await house.ledgers.delete_ledger(ledger_id)
    return Told(Changed(True))


async def _refuse_owned(house: House, ledger_id: int) -> None:
    try:
        keeper = keeper_of((await house.ledgers.ledger_metadata(ledger_id)).custom)
    except (CannotRead, FormatTooNew) as error:
        raise HttpError(
            409,
            "unreadable",
            f"ledger {ledger_id}: {error}, so nobody can tell whose it is",
            remedy="force deletes it all the same",
        ) from error
    if keeper:
        raise HttpError(
            409,
            "owned",
            f"ledger {ledger_id} belongs to {keeper}, which deletes it when nothing needs it any "
            "more",
            remedy="force deletes it all the same, and what lies in it is lost",
        )


_ID: Final = {"id": Id}
ROUTES: Final = (
    Route(
        "GET",
        "/ledgers",
        "list_ledgers",
        "List ledgers by id.",
        ADMIN,
        list_ledgers,
        LedgersQuery,
        reply=LedgerList,
        other_statuses=(400,),
    ),
    Route(
        "GET",
        "/ledgers/{id}",
        "show_ledger",
        "Show a ledger.",
        ADMIN,
        show_ledger,
        reply=WholeLedger,
        path_kinds=_ID,
        other_statuses=(400, 404),
    ),
    Route(
        "DELETE",
        "/ledgers/{id}",
        "delete_ledger",
        "Delete a ledger for ever.",
        ADMIN,
        delete_ledger,
        DeleteQuery,
        reply=Changed,
        path_kinds=_ID,
        other_statuses=(400, 404, 409),
    ),
)
