"""Statements of the session itself: BEGIN, COMMIT, SAVEPOINT, SHOW, DESCRIBE, EXPLAIN.

Invariants:
- What moves within a transaction waits for the statement that runs; COMMIT does, ROLLBACK ends it.
- A savepoint's name means the last one of that name; going back to it leaves it there.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from herd.errors import NoSuchIndex, NotSupportedError, ProgrammingError, SqlSyntaxError
from herd.sql import ingesting, showing, spaces, whole
from herd.sql.parsing import Parsed
from herd.sql.result import Result
from herd.transaction import Isolation

if TYPE_CHECKING:
    from herd.sql.session import Session

_LEVELS: Final = {
    "SNAPSHOT": Isolation.SNAPSHOT,
    "REPEATABLE READ": Isolation.SNAPSHOT,
    "READ COMMITTED": Isolation.READ_COMMITTED,
    "READ UNCOMMITTED": Isolation.READ_COMMITTED,
}
Parameters = Sequence[Any] | Mapping[str, Any]


async def run(session: "Session", parsed: Parsed, parameters: Parameters) -> Result:
    """Do what the words say. Raises `SqlSyntaxError`, `NotSupportedError` and what it meets."""
    if parsed.word == "EXPLAIN":
        # The explained statement may be long, so it is parsed as a statement of its own.
        return await showing.explain(session, parsed, parameters)
    words = [piece.upper() for piece in parsed.pieces]
    do = _DO.get(parsed.word)
    if do is not None:
        if parsed.word in _IN_TURN or "TO" in words:
            # Other threads' statements on the connection are within no savepoint by accident.
            async with session.turn:
                return await do(session, words, parsed)
        return await do(session, words, parsed)
    return await showing.run(session, parsed)


async def _begin(session: "Session", words: list[str], parsed: Parsed) -> Result:
    rest = words[1:]
    if rest and rest[0] in ("TRANSACTION", "WORK"):
        rest = rest[1:]
    elif words[0] == "START":
        raise _wrong(parsed)
    await session.begin(_isolation(rest, parsed) if rest else None)
    return Result(kind="BEGIN")


async def _commit(session: "Session", words: list[str], parsed: Parsed) -> Result:
    if words[1:] not in ([], ["WORK"], ["TRANSACTION"]):
        raise _wrong(parsed)
    await session.commit()
    return Result(kind="COMMIT")


async def _rollback(session: "Session", words: list[str], parsed: Parsed) -> Result:
    rest = words[1:]
    if rest and rest[0] in ("WORK", "TRANSACTION"):
        rest = rest[1:]
    if not rest:
        await session.rollback()
        return Result(kind="ROLLBACK")
    name = _savepoint_name(rest[1:], parsed) if rest[0] == "TO" else None
    if name is None:
        raise _wrong(parsed)
    transaction, place = _savepoint(session, name)
    mark = session.savepoints[place][1]
    del session.savepoints[place:]
    transaction.undo(mark)
    session.savepoints.append((name, transaction.mark()))
    return Result(kind="ROLLBACK TO")


async def _set_savepoint(session: "Session", words: list[str], parsed: Parsed) -> Result:
    if len(words) != 2:
        raise _wrong(parsed)
    if session.transaction is None:
        if session.autocommit:
            raise ProgrammingError("no transaction is open", hint="BEGIN one")
        await session.begin()
    assert session.transaction is not None
    session.savepoints.append((words[1], session.transaction.mark()))
    return Result(kind="SAVEPOINT")


async def _release(session: "Session", words: list[str], parsed: Parsed) -> Result:
    name = _savepoint_name(words[1:], parsed)
    transaction, place = _savepoint(session, name)
    mark = session.savepoints[place][1]
    del session.savepoints[place:]
    transaction.release(mark)
    return Result(kind="RELEASE")


def _savepoint(session: "Session", name: str) -> tuple[Any, int]:
    transaction = session.transaction
    if transaction is None:
        raise ProgrammingError("no transaction is open", hint="BEGIN one")
    transaction.check()
    for place in range(len(session.savepoints) - 1, -1, -1):
        if session.savepoints[place][0] == name:
            return transaction, place
    raise NoSuchIndex(f"there is no savepoint {name.lower()}")


def _savepoint_name(rest: list[str], parsed: Parsed) -> str:
    if rest and rest[0] == "SAVEPOINT" and len(rest) == 2:
        return rest[1]
    if len(rest) == 1:
        return rest[0]
    raise _wrong(parsed)


async def _set(session: "Session", words: list[str], parsed: Parsed) -> Result:
    if words[1:2] == ["TRANSACTION"]:
        level = _isolation(words[2:], parsed)
        transaction = session.transaction
        if transaction is None:
            session.isolation = level
        elif transaction.changed or transaction.locks:
            raise ProgrammingError("the transaction has begun", hint="set it before")
        else:
            await session.rollback()
            await session.begin(level)
        return Result(kind="SET")
    if words[1:5] == ["SESSION", "CHARACTERISTICS", "AS", "TRANSACTION"]:
        session.isolation = _isolation(words[5:], parsed)
        return Result(kind="SET")
    if words[1:2] == ["AUTOCOMMIT"] and words[-1] in ("ON", "OFF", "1", "0", "TRUE", "FALSE"):
        if session.transaction is not None:
            raise ProgrammingError("a transaction is open", hint="COMMIT or ROLLBACK it first")
        session.autocommit = words[-1] in ("ON", "1", "TRUE")
        return Result(kind="SET")
    raise NotSupportedError("there is no such setting", hint="SET TRANSACTION ISOLATION LEVEL …")


def _isolation(words: list[str], parsed: Parsed) -> Isolation:
    if words[:2] == ["ISOLATION", "LEVEL"]:
        level = " ".join(words[2:])
        if level in _LEVELS:
            return _LEVELS[level]
        if level == "SERIALIZABLE":
            raise NotSupportedError(
                "ISOLATION LEVEL SERIALIZABLE", hint="use SNAPSHOT and SELECT … FOR UPDATE"
            )
    raise _wrong(parsed)


def _wrong(parsed: Parsed) -> SqlSyntaxError:
    return SqlSyntaxError(f"this is no {parsed.word}", place=parsed.start)


_IN_TURN: Final = frozenset(("BEGIN", "START", "SAVEPOINT", "RELEASE", "SET"))
Do = Callable[["Session", list[str], Parsed], Awaitable[Result]]
_DO: Final[dict[str, Do]] = {
    "ABORT": _rollback,
    "BEGIN": _begin,
    "CHECK": whole.check,
    "CHECKPOINT": whole.checkpoint,
    "COMMIT": _commit,
    "END": _commit,
    "INGEST": ingesting.run,
    "RELEASE": _release,
    "RESTORE": whole.restore,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _set_savepoint,
    "SET": _set,
    "START": _begin,
    spaces.WORD: spaces.run,
}
