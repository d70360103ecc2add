"""Rows that were staged in ledgers, written by one statement: what Spark's writers say.

    INGEST INTO cow AS 0a1b…                what the table is, and whether it has the job's rows
    INGEST 12/0/345/987 AS 0a1b…            write what the blob there names

AS names the job among those of its table, in hexadecimal digits, so that one that is asked for
again is answered.

Invariants:
- None of them is part of a transaction; each may be asked again.
"""

import re
from typing import TYPE_CHECKING, Final

import msgspec

from herd.errors import ProgrammingError, SqlSyntaxError
from herd.sql.result import Result, ResultColumn
from herd.types import BIGINT, ColumnType, Kind

if TYPE_CHECKING:
    from herd.sql.parsing import Parsed
    from herd.sql.session import Session

_JOB: Final = re.compile(r"(?:[0-9a-f]{2}){1,64}", re.IGNORECASE)
_FORM: Final = "INGEST ledger/entry/size/checksum AS job"
_BOOLEAN: Final = ColumnType(Kind.BOOLEAN)
_DESCRIBED: Final = (
    ResultColumn("definition", ColumnType(Kind.BLOB)),
    ResultColumn("written", _BOOLEAN),
)
_WRITTEN: Final = (ResultColumn("rows", BIGINT), ResultColumn("repeated", _BOOLEAN))


async def run(session: "Session", words: list[str], parsed: "Parsed") -> Result:
    """Do what the words say.

    Raises `SqlSyntaxError`, `ProgrammingError`, `NoSuchTable`, and what `ingest` raises.
    """
    # What writing in bulk needs loads when somebody does.
    from herd.staging.ingesting import ingest
    from herd.staging.layout import parse_locator
    from herd.staging.marks import JobMark

    pieces = parsed.pieces
    if len(pieces) < 4 or words[-2] != "AS" or not _JOB.fullmatch(pieces[-1]):
        raise SqlSyntaxError("this is no INGEST", place=parsed.start, hint=_FORM)
    if session.transaction is not None:
        raise ProgrammingError("INGEST inside a transaction", hint="COMMIT or ROLLBACK first")
    space, identity = session.space, bytes.fromhex(pieces[-1])
    if words[1] == "INTO" and len(pieces) == 5:
        await space.until_readable()
        table = space.catalog.table(pieces[2])
        written = await JobMark(space, table.id, identity).is_written()
        definition = msgspec.msgpack.encode(table)
        return Result(_DESCRIBED, [(definition, written)], 1, None, "INGEST")
    if len(pieces) != 4:
        raise SqlSyntaxError("this is no INGEST", place=parsed.start, hint=_FORM)
    done = await ingest(space, session.query.workers, identity, parse_locator(pieces[1]))
    return Result(_WRITTEN, [tuple(done)], done.rows, None, "INGEST")
