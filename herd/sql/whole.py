"""Statements about all of the session's tablespace.

    CHECKPOINT [IF CHANGED]
    CHECK TABLESPACE
    RESTORE TABLESPACE farm UNTIL 12/345

`CHECKPOINT IF CHANGED` is content with the newest checkpoint if nothing was committed since.
`CHECK` compares the rows of all replicas at one position. `RESTORE` fills this tablespace, which
must be empty, with another one as it was after the transaction at a position: ledger/entry.

Invariants:
- None of them is part of a transaction.
"""

import re
from typing import TYPE_CHECKING, Final, NoReturn

from engine.log.position import Position
from herd.checking import VERDICT_COLUMNS, check_replicas
from herd.errors import ProgrammingError, SqlSyntaxError
from herd.permits import may_see_space
from herd.sql.result import Result, ResultColumn
from herd.types import BIGINT, TEXT

if TYPE_CHECKING:
    from herd.sql.parsing import Parsed
    from herd.sql.session import Session

_POSITION: Final = re.compile(r"'?(\d+)/(\d+)'?")
_RESTORE: Final = "RESTORE TABLESPACE name UNTIL ledger/entry"


async def checkpoint(session: "Session", words: list[str], parsed: "Parsed") -> Result:
    """Write all tables in pages. Raises as `Tablespace.checkpoint`."""
    if words[1:] not in ([], ["IF", "CHANGED"]):
        _fail(parsed, "CHECKPOINT [IF CHANGED]")
    await session.space.checkpoint(if_changed=len(words) > 1)
    return Result(kind="CHECKPOINT")


async def check(session: "Session", words: list[str], parsed: "Parsed") -> Result:
    """Compare the replicas: a row for each, and for each difference. Raises `LeaderUnavailable`."""
    if words != ["CHECK", "TABLESPACE"]:
        _fail(parsed, "CHECK TABLESPACE")
    rows = (await check_replicas(session.space)).rows()
    columns = tuple(
        ResultColumn(name, TEXT if kind is str else BIGINT) for name, kind in VERDICT_COLUMNS
    )
    return Result(columns, rows, len(rows), None, "CHECK TABLESPACE")


async def restore(session: "Session", words: list[str], parsed: "Parsed") -> Result:
    """Fill the tablespace with another one.

    Raises `ProgrammingError` if it is not empty, or there is no such other one or position,
    `StorageFailed` where its log is not kept any more, `LeaderUnavailable`.
    """
    from herd.restoring import restore_until

    found = _POSITION.fullmatch(words[4]) if len(words) == 5 else None
    if found is None or [words[1], words[3]] != ["TABLESPACE", "UNTIL"]:
        _fail(parsed, _RESTORE)
    if session.transaction is not None:
        raise ProgrammingError(
            "RESTORE TABLESPACE inside a transaction", hint="COMMIT or ROLLBACK first"
        )
    space, source = session.space, words[2].lower()
    if session.permits is not None:
        session.permits.need("read", source)
    there = [space.name] if space.commands is None else await space.commands.spaces()
    if source not in there:
        seen = [name for name in there if may_see_space(name)]
        raise ProgrammingError(
            f"there is no tablespace {source}", hint=f"there are {', '.join(seen)}"
        )
    until = Position(int(found[1]), int(found[2]))
    await restore_until(space, space.client, session.query.workers, source, until)
    return Result(kind="RESTORE TABLESPACE")


def _fail(parsed: "Parsed", form: str) -> NoReturn:
    raise SqlSyntaxError(f"this is no {parsed.word}", place=parsed.start, hint=form)
