"""Tables as keys and values, asked from afar.

Invariants:
- Each call is a transaction of its own, or part of the one of its session.
- A page of a scan has at most `ROWS_MAX` rows; what comes behind it is named by the server.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from engine.access.principal import Principal
from herd.errors import InterfaceError, LeaderUnavailable
from herd.permits import check_tables
from herd.wire import messages
from herd.wire.messages import Answer, Page, Told, encode
from herd.wire.service import HerdService
from herd.wire.values import packed_map, packed_row

if TYPE_CHECKING:
    from herd.binding import RowDict
    from herd.table import AsyncTable
    from herd.transaction import Transaction

ROWS_MAX: Final = 1_000
KEYS_MAX: Final = 10_000
_CHANGES: Final = (messages.Put, messages.Update, messages.Delete)


class _Another(Exception):
    """The row is not the one that was expected."""

    def __init__(self, row: "RowDict") -> None:
        super().__init__()
        self.row = row


def get_now(service: HerdService, call: messages.Get) -> Answer | None:
    """Rows by their keys, at once; None: it has to wait."""
    table = service.known_table(call.table, call.tablespace)
    if table is None or call.locks or len(call.keys) > 16:
        return None
    also = None
    if call.also is not None:
        also = service.known_table(call.also[0], call.tablespace)
        if also is None:
            return None
    try:
        return _rows(table, call, also)
    except LeaderUnavailable:
        return None
    except Exception:
        # What is wrong with it is found again, and told, where it is waited for.
        return None


async def answer(
    service: HerdService, call: Any, transaction: "Transaction | None", principal: Principal
) -> Answer:
    """The answer to a call about a table. Raises what is in `herd.errors`."""
    if type(call) is messages.Describe:
        described = await service.table(call.table, call.tablespace)
        await described.space.until_readable()
        return _described(described)
    table = await service.table(call.table, call.tablespace)
    if type(call) in _CHANGES or getattr(call, "locks", False):
        check_tables(principal, (call.table,), table.space.catalog)
    if type(call) is messages.Get:
        also = None
        if call.also is not None and transaction is None:
            also = await service.table(call.also[0], call.tablespace)
        return await _get(table, call, transaction, also)
    if type(call) is messages.Put:
        return Told(await _put(table, call, transaction))
    if type(call) is messages.Update:
        return await _update(table, call, transaction)
    if type(call) is messages.Delete:
        return Told(await table.delete(_key(call.key), transaction=transaction))
    if type(call) is messages.Scan:
        return await _scan(table, call)
    raise InterfaceError(f"{type(call).__name__} is not known here")


def _key(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _rows(table: "AsyncTable", call: messages.Get, also: "AsyncTable | None" = None) -> Told:
    bound = table.bound
    if call.plain:
        found = [bound.get_row(_key(key)) for key in call.keys]
        return Told([None if row is None else packed_row(row) for row in found])
    rows = [bound.get(_key(key)) for key in call.keys]
    if also is not None and call.also is not None:
        rows.append(also.bound.get(_key(call.also[1])))
    return Told([None if row is None else packed_map(row) for row in rows])


async def _get(
    table: "AsyncTable",
    call: messages.Get,
    transaction: "Transaction | None",
    also: "AsyncTable | None" = None,
) -> Answer:
    if len(call.keys) > KEYS_MAX:
        raise InterfaceError(f"at most {KEYS_MAX} keys are looked up at once")
    if transaction is None:
        if call.locks:
            raise InterfaceError("only a transaction locks rows", hint="begin one")
        await table.space.until_readable()
        return _rows(table, call, also)
    keys = [_key(key) for key in call.keys]
    if call.locks:
        rows = await table.lock_many(keys, transaction=transaction)
    else:
        rows = [await table.get(key, transaction=transaction) for key in keys]
    if call.plain:
        return Told([None if row is None else packed_row(row.values()) for row in rows])
    return Told([None if row is None else packed_map(row) for row in rows])


async def _put(table: "AsyncTable", call: messages.Put, transaction: "Transaction | None") -> int:
    if len(call.rows) == 1:
        store = table.put if call.replace else table.insert
        await store(call.rows[0], transaction=transaction)
        return 1
    if not call.replace:
        raise InterfaceError("rows are inserted one by one", hint="or put many")
    return await table.put_many(call.rows, transaction=transaction)


async def _update(
    table: "AsyncTable", call: messages.Update, transaction: "Transaction | None"
) -> Answer:
    expected = call.expected
    if expected is None:
        return Told(await table.update(_key(call.key), call.changes, transaction=transaction))
    wanted = encode(packed_map(expected))

    def change(row: "RowDict") -> Mapping[str, Any]:
        # Compared as bytes: not a number is no other number than itself here.
        if encode(packed_map(row)) != wanted:
            raise _Another(row)
        return call.changes

    try:
        return Told(await table.update(_key(call.key), change, transaction=transaction))
    except _Another as found:
        return Told(packed_map(found.row))


async def _scan(table: "AsyncTable", call: messages.Scan) -> Answer:
    space, bound = table.space, table.bound
    first, last, prefix = (_one(given) for given in (call.first, call.last, call.prefix))
    begin, end = bound.range(_key(first), _key(last), prefix)
    begin = max(begin, call.after)
    await space.until_readable()
    count = max(1, min(call.count, ROWS_MAX))
    page = space.rows_scan(begin, end, count) if begin < end else []
    rows = [packed_map(bound.as_dict(value)) for _, value in page]
    return Page(rows, page[-1][0] + b"\x00" if len(page) == count else b"")


def _one(given: list[Any]) -> Any:
    return given[0] if given else None


def _described(table: "AsyncTable") -> Answer:
    definition = table.bound.table
    columns = [(column.name, column.type, column.nullable) for column in definition.visible]
    primary = [definition.by_number[number].name for number in definition.primary]
    return messages.Described(definition.name, columns, primary)
