"""Errors on their way: class, SQLSTATE, place, hint, and who to ask instead.

Invariants:
- An error of the database arrives as one of the same class; one of a class that the client does not
  know arrives as the nearest that it knows, by its code.
- What is no error of the database is a defect: it is written into the server's log and told as
  `InternalError`, without its innards.
"""

from typing import Final

from herd import errors
from herd.errors import Error
from herd.translating import database_error
from herd.wire.messages import NO_TRANSACTION, Failed

_TEXT_CHARACTERS_MAX: Final = 10_000
_KINDS: Final[dict[str, type[Error]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Error)
}
_BY_CODE: Final[dict[str, type[Error]]] = {
    "22": errors.DataError,
    "23": errors.IntegrityError,
    "42": errors.ProgrammingError,
    "07": errors.ProgrammingError,
    "0A": errors.NotSupportedError,
    "XX": errors.InternalError,
    "HY": errors.InterfaceError,
}


def failed(
    error: BaseException, *, leader: str = "", lost: bool = False, state: int = NO_TRANSACTION
) -> Failed:
    """What to tell of an error."""
    if isinstance(error, FileExistsError):
        error = errors.ProgrammingError(f"{error.filename} exists", hint="choose another file")
    error = database_error(error)
    return Failed(
        type(error).__name__,
        error.code,
        error.message[:_TEXT_CHARACTERS_MAX],
        error.hint[:_TEXT_CHARACTERS_MAX],
        error.place,
        error.retryable,
        leader,
        lost,
        state,
    )


def error_of(told: Failed) -> Error:
    """The error that was told of."""
    kind = _KINDS.get(told.name) or _BY_CODE.get(told.code[:2], errors.OperationalError)
    return kind(told.message, hint=told.hint, place=told.place)
