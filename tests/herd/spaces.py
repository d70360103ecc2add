"""Tablespaces in memory, tables and rows for the tests of the core.

Invariants:
- Tables are made as a statement would make them; values of rows are stored ones.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from engine.log.settings import LogSettings
from engine.replica.settings import ReplicaSettings
from engine.state.contract import State
from engine.state.memory import MemoryState
from herd.changing import Changer
from herd.rows import Row, row_decoder
from herd.schema import Column, ForeignKey, Index, Table
from herd.settings import HerdSettings
from herd.tablespace import Tablespace
from herd.transaction import Isolation, Transaction
from herd.types import BIGINT, TEXT, ColumnType
from tests.engine.ledger.scripted import QUICK, Cluster

LOG = LogSettings(ensemble=1, write_quorum=1, ack_quorum=1, look_interval_ms=50, retry_pause_ms=5)
REPLICA = ReplicaSettings(snapshot_entries=0, duties_ms=1_000, level_settle_ms=0, retry_pause_ms=5)
CLIENT = replace(QUICK, append_timeout_ms=10_000, read_timeout_ms=10_000, lease_ms=60_000)
PATIENT = HerdSettings(lock_timeout_ms=60_000)


@asynccontextmanager
async def opened(
    settings: HerdSettings = PATIENT,
    state: State | None = None,
    cluster: Cluster | None = None,
    *,
    elect: bool = False,
) -> AsyncIterator[Tablespace]:
    """The only replica of a tablespace, which leads at once, or by a lease that it is to get."""
    cluster = cluster or await Cluster.of(1)
    space = await Tablespace.open(
        cluster.client(CLIENT),
        "default",
        state if state is not None else MemoryState(),
        settings=settings,
        replica_settings=REPLICA,
        log_settings=LOG,
        elect=elect,
    )
    try:
        yield space
    finally:
        await space.close()


def columns(*types: ColumnType, nullable: bool = True) -> tuple[Column, ...]:
    """Columns a, b, c and so on; the first one takes no NULL."""
    return tuple(
        Column(number, "abcdefghij"[number], kind, nullable=nullable and number > 0)
        for number, kind in enumerate(types)
    )


PLAIN = columns(BIGINT, BIGINT, TEXT)


async def made(
    space: Tablespace,
    name: str,
    shape: tuple[Column, ...] = PLAIN,
    *,
    primary: tuple[int, ...] = (0,),
    indexes: Sequence[Index] = (),
    foreign_keys: Sequence[ForeignKey] = (),
) -> Table:
    """Make a table. A foreign key with parent 0 names the table itself."""
    transaction = space.begin()
    catalog, [table_id] = transaction.catalog.new_ids(1)
    table = Table(
        table_id,
        name,
        table_id,
        shape,
        primary,
        tuple(indexes),
        tuple(
            ForeignKey(
                key.name,
                key.columns,
                key.parent or table_id,
                key.parent_columns,
                key.on_delete,
                key.on_update,
            )
            for key in foreign_keys
        ),
        next_column=len(shape),
        next_index=len(indexes) + 1,
    )
    transaction.set_catalog(*catalog.with_table(table))
    await transaction.commit()
    return space.catalog.table(name)


def key_of(space: Tablespace, table: Table, *primary: object) -> bytes:
    """The whole key of a row."""
    return space.catalog.plan(table).prefix + table.encode_primary(primary)


async def insert(transaction: Transaction, table: Table, *rows: list[Any]) -> None:
    """A statement that inserts rows."""
    with transaction.statement():
        await transaction.lock_table(table)
        await Changer(transaction, table).insert_all(rows)


async def locked(transaction: Transaction, table: Table, key: bytes) -> Row | None:
    """A row as it is now, locked."""
    await transaction.lock_table(table)
    await transaction.lock_row(table, key)
    value = transaction.get_newest(key)
    transaction.check_unchanged(table, value, key)
    return None if value is None else row_decoder(table)(value)


async def update(transaction: Transaction, table: Table, *rows: tuple[int, list[Any]]) -> None:
    """A statement that changes rows, each by its primary key, a number, all at once."""
    changes = []
    with transaction.statement():
        for primary, after in rows:
            key = table.prefix + table.encode_primary((primary,))
            before = await locked(transaction, table, key)
            assert before is not None
            changes.append((key, before, after))
        await Changer(transaction, table).update_all(changes)


async def delete(transaction: Transaction, table: Table, *primaries: int) -> None:
    """A statement that removes rows by their primary keys, all at once."""
    gone = []
    with transaction.statement():
        for primary in primaries:
            key = table.prefix + table.encode_primary((primary,))
            before = await locked(transaction, table, key)
            assert before is not None
            gone.append((key, before))
        await Changer(transaction, table).delete_all(gone)


def rows_in(transaction: Transaction, table: Table) -> list[Row]:
    """What a transaction sees of a table, in order of keys."""
    decode = row_decoder(table)
    end = table.prefix + b"\xff"
    return [decode(value) for _, value in transaction.scan(table.prefix, end, 10_000)]


def rows_of(space: Tablespace, table: Table) -> list[Row]:
    """What is committed of a table, in order of keys."""
    return rows_in(space.begin(), table)


def index_is_right(space: Tablespace, table: Table) -> None:
    """Fail unless the entries of all indexes are those of the rows, and no others."""
    transaction, plan = space.begin(), space.catalog.plan(table)
    wanted: dict[bytes, bytes] = {}
    for key, value in transaction.scan(table.prefix, table.prefix + b"\xff", 10_000):
        for entry in plan.entries(plan.decode(value), key):
            assert entry not in wanted, "two rows have one entry"
            wanted[entry] = key[len(plan.prefix) :]
    found: dict[bytes, bytes] = {}
    for index in plan.indexes:
        end = index.prefix + b"\xff" * 3
        found.update(transaction.scan_plain(index.prefix, end, 10_000))
    transaction.rollback()
    assert found == wanted


def snapshot(space: Tablespace) -> Transaction:
    """A SNAPSHOT transaction that has looked."""
    transaction = space.begin(Isolation.SNAPSHOT)
    transaction.snapshot()
    return transaction
