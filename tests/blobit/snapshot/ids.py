"""Ids of objects that are nowhere."""

from blobit.object_id import Kind, ObjectId


def object_id_of(ledger_id: int, first_entry: int, length: int = 3) -> ObjectId:
    """An object of one entry."""
    return ObjectId(Kind.DATA, ledger_id, first_entry, 65_536, length, length, 7)
