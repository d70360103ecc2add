"""Whose a ledger is: what its custom metadata, written when it was made, say.

    owner "herd:NAME"              a checkpoint of tablespace NAME
    owner "log:herd/NAME"          its log, and its snapshots
    owner "blobit", name NAME      objects of bucket NAME
    owner "log:NAME"               another log, and its snapshots
    owner "herd-staging"           rows of a job that no commit has taken yet

Invariants:
- A ledger that does not say so, or says it in another way, is nobody's: no token reads it.
"""

from collections.abc import Mapping
from typing import Final

from engine.access.principal import Kind, Principal

_MARKS: Final = (b"herd:", b"log:herd/")
_KEEPERS: Final = (b"blobit", b"log:", b"herd:", b"herd-staging")
"""How the names begin of those who delete their ledgers themselves."""
_BLOBIT: Final = b"blobit"
_TABLESPACE: Final[Kind] = "tablespace"
_BUCKET: Final[Kind] = "bucket"


def owner_of(custom: Mapping[str, bytes]) -> tuple[Kind, str] | None:
    """Who owns a ledger with this custom metadata; None: nobody that a grant could name.

    >>> owner_of({"owner": b"herd:shop"}), owner_of({"owner": b"blobit", "name": b"letters"})
    (('tablespace', 'shop'), ('bucket', 'letters'))
    """
    owner, kind, name = custom.get("owner", b""), _TABLESPACE, b""
    for mark in _MARKS:
        if owner.startswith(mark):
            name = owner.removeprefix(mark)
    if owner == _BLOBIT:
        kind, name = _BUCKET, custom.get("name", b"")
    try:
        return (kind, name.decode()) if name else None
    except UnicodeDecodeError:
        return None


def keeper_of(custom: Mapping[str, bytes]) -> str:
    """Who deletes a ledger when nothing needs it any more; "": nobody does.

    >>> keeper_of({"owner": b"log:broker"}), keeper_of({"owner": b"mine"}), keeper_of({})
    ('log:broker', '', '')
    """
    owner = custom.get("owner", b"")
    return owner.decode(errors="replace") if owner.startswith(_KEEPERS) else ""


def may_read(principal: Principal, custom: Mapping[str, bytes]) -> bool:
    """Whether somebody may read a ledger with this custom metadata."""
    owner = owner_of(custom)
    return principal.admin if owner is None else principal.allows(*owner, "read")
