"""Finding and pinning the snapshot that a read asks for.

Invariants:
- What is not there is told by name, and leaves no pin behind.
"""

from engine.application import Application
from engine.place import Place
from herd.checkpoint.manifest import Manifest
from herd.errors import NoSuchTable
from herd.schema import Table
from herd.snapshot.conditions import Condition
from herd.snapshot.pinning import pin_checkpoint
from herd.snapshot.snapshot import Snapshot, read_manifest
from herd.snapshot.wanted import Wanted


def open_snapshot(place: Place, application: Application, wanted: Wanted) -> Snapshot:
    """Pin what is wanted. Blocks.

    Raises `ProgrammingError` and its kinds for a tablespace, checkpoint, table or column that is
    not there, `LeaderUnavailable`, `StorageFailed`.
    """
    found, pin = pin_checkpoint(
        place, application, wanted.tablespace, fresh=wanted.fresh, number=wanted.number
    )
    try:
        manifest = read_manifest(place, wanted.tablespace, found)
        table = _table_of(manifest, wanted.table)
        columns, conditions = wanted.chosen(table), _conditions(wanted, table)
    except BaseException:
        pin.drop()
        raise
    name = pin.note(application).name
    return Snapshot(place, wanted.tablespace, found, name, table, columns, conditions)


def _conditions(wanted: Wanted, table: Table) -> tuple[Condition, ...]:
    if not wanted.where:
        return ()
    # The parser of SQL loads when there is some.
    from herd.snapshot.where import parse_where

    return parse_where(wanted.where, table)


def _table_of(manifest: Manifest, name: str) -> Table:
    tables = {table.name.lower(): table for table in manifest.tables}
    found = tables.get(name.lower())
    if found is not None:
        return found
    where = f"tablespace {manifest.tablespace} at checkpoint {manifest.number}"
    if any(view.name.lower() == name.lower() for view in manifest.views):
        raise NoSuchTable(f"{name} is a view of {where}", hint="load its tables, and join them")
    there = ", ".join(sorted(tables)[:20]) or "none"
    raise NoSuchTable(f"there is no table {name} in {where}", hint=f"its tables: {there}")
