"""Every error of the database: the classes of PEP 249, and under them what exactly went wrong.

Error
├── InterfaceError               the call is wrong: a closed cursor, a bad argument
└── DatabaseError
    ├── DataError                a value does not fit: 22000
    │   ├── ValueOutOfRange          22003
    │   ├── ValueTooLong             22001
    │   ├── ValueInvalid             22P02
    │   └── DivisionByZero           22012
    ├── OperationalError         the moment is wrong, the statement is not: 58000
    │   ├── LockTimeout              55P03  another transaction holds the row: try again
    │   ├── Deadlock                 40P01  two wait for each other: this one was rolled back
    │   ├── SerializationFailure     40001  a row changed since the snapshot: try the whole again
    │   ├── TransactionEnded         25P02  rolled back since: begin another one
    │   ├── LeaderUnavailable        57P03  nobody leads the tablespace at the moment: try again
    │   ├── CommitUnknown            08007  the commit may or may not have happened
    │   ├── SessionLost              08006  the server has gone: nothing of the transaction stays
    │   ├── TooManySessions          53300  the server has no room for another session
    │   ├── AccessDenied             28000  the server wants a proof that was not given
    │   ├── TooLarge                 54000  more than one transaction or statement may hold
    │   ├── DiskFull                 53100  only the reserve of a disk is free: delete rows
    │   └── StorageFailed            58030  the disk failed; nothing was changed
    ├── IntegrityError           a constraint does not hold: 23000
    │   ├── NotNullViolation         23502
    │   ├── ForeignKeyViolation      23503
    │   ├── UniqueViolation          23505
    │   └── CheckViolation           23514
    ├── InternalError            a defect: XX000
    ├── ProgrammingError         the statement is wrong: 42000
    │   ├── SqlSyntaxError           42601
    │   ├── NoSuchTable              42P01
    │   ├── NoSuchColumn             42703
    │   ├── NoSuchIndex              42704
    │   ├── NameTaken                42P07
    │   ├── TypeMismatch             42804
    │   └── ParametersMismatch       07001
    └── NotSupportedError        0A000

`code` is the SQLSTATE, the same as PostgreSQL's where that has one.
"""

from typing import Any, ClassVar


class Warning(Exception):
    """Required by PEP 249; nothing raises it."""


class Error(Exception):
    """The root. `code` is an SQLSTATE, `hint` says what to do, `place` where in the text.

    `retryable` is true where the same transaction, done again from its beginning, may succeed.

    >>> str(NoSuchTable("there is no table cow", hint="SHOW TABLES lists them", place=14))
    'there is no table cow (at character 15; SHOW TABLES lists them) [42P01]'
    """

    code: ClassVar[str] = "HY000"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", place: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.place = place
        """How many characters of the statement come before what is wrong; None: not known."""

    def __str__(self) -> str:
        where = f"at character {self.place + 1}" if self.place is not None else ""
        aside = "; ".join(filter(None, (where, self.hint)))
        return (
            f"{self.message} ({aside}) [{self.code}]" if aside else f"{self.message} [{self.code}]"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message, self.hint, self.place)


class InterfaceError(Error):
    """The call is wrong: a closed cursor, an argument of the wrong kind. Mend the program."""

    code = "HY000"


class DatabaseError(Error):
    """Whatever the database itself has to say."""

    code = "HY000"


class DataError(DatabaseError):
    """A value does not fit. Nothing was changed."""

    code = "22000"


class ValueOutOfRange(DataError):
    """A number outside its type's range. Nothing was changed."""

    code = "22003"


class ValueTooLong(DataError):
    """A text, some bytes or a key are longer than they may be. Nothing was changed."""

    code = "22001"


class ValueInvalid(DataError):
    """A value is not of its column's type and cannot be made so without loss."""

    code = "22P02"


class DivisionByZero(DataError):
    """A division by zero. Nothing was changed."""

    code = "22012"


class OperationalError(DatabaseError):
    """The moment is wrong: the same statement may succeed later."""

    code = "58000"


class LockTimeout(OperationalError):
    """Another transaction kept a lock for too long. The statement did nothing; try it again."""

    code = "55P03"
    retryable = True


class Deadlock(OperationalError):
    """Transactions wait for each other. This one was rolled back: begin it again."""

    code = "40P01"
    retryable = True


class SerializationFailure(OperationalError):
    """A row changed since this transaction's snapshot. Roll back and do all of it again."""

    code = "40001"
    retryable = True


class TransactionEnded(OperationalError):
    """The transaction was rolled back meanwhile: it was idle too long, or its leader changed."""

    code = "25P02"
    retryable = True


class LeaderUnavailable(OperationalError):
    """Nobody leads the tablespace at the moment. Nothing was changed; try again."""

    code = "57P03"
    retryable = True


class CommitUnknown(OperationalError):
    """The leader went away during the commit: it may or may not have happened. Read to know."""

    code = "08007"


class SessionLost(OperationalError):
    """The server or the way to it has gone; the open transaction was rolled back. Begin again."""

    code = "08006"
    retryable = True


class TooManySessions(OperationalError):
    """The server has no room for another session. Close some, or try again later."""

    code = "53300"
    retryable = True


class AccessDenied(OperationalError):
    """The server wants a proof of who asks: a secret or a certificate. Nothing was done."""

    code = "28000"


class TooLarge(OperationalError):
    """One transaction, statement or result would hold more than it may. Do it in parts."""

    code = "54000"


class DiskFull(OperationalError):
    """Only the reserve of a disk is free, which is kept for deletions. Nothing was changed.

    Delete rows, drop tables, or free space on the disk; then try again.
    """

    code = "53100"
    retryable = True


class StorageFailed(OperationalError):
    """The disk failed, or the replica has stopped. Nothing was changed."""

    code = "58030"


class ChangesGone(StorageFailed):
    """The changes after this position are no longer kept.

    Read the tables as they are now, and follow the changes from there.
    """


class IntegrityError(DatabaseError):
    """A constraint does not hold. The statement did nothing."""

    code = "23000"


class NotNullViolation(IntegrityError):
    """NULL for a column that takes none."""

    code = "23502"


class ForeignKeyViolation(IntegrityError):
    """A row refers to one that is not there, or is referred to by one that stays."""

    code = "23503"


class UniqueViolation(IntegrityError):
    """Another row has this primary or unique key."""

    code = "23505"


class CheckViolation(IntegrityError):
    """A CHECK of the table is false for the row."""

    code = "23514"


class InternalError(DatabaseError):
    """A defect of the database. Nothing was changed; please report it."""

    code = "XX000"


class ProgrammingError(DatabaseError):
    """The statement is wrong and will never succeed as it is. Nothing was changed."""

    code = "42000"


class SqlSyntaxError(ProgrammingError):
    """The text is no SQL statement."""

    code = "42601"


class NoSuchTable(ProgrammingError):
    """There is no table or view of that name."""

    code = "42P01"


class NoSuchColumn(ProgrammingError):
    """The table has no column of that name."""

    code = "42703"


class NoSuchIndex(ProgrammingError):
    """There is no index, constraint or other object of that name."""

    code = "42704"


class NameTaken(ProgrammingError):
    """A table, view, column or index of that name exists."""

    code = "42P07"


class TypeMismatch(ProgrammingError):
    """An operation on types that it is not defined for."""

    code = "42804"


class ParametersMismatch(ProgrammingError):
    """The parameters given are not those that the statement has."""

    code = "07001"


class NotSupportedError(DatabaseError):
    """SQL that this database does not have. The hint names what to use instead."""

    code = "0A000"


def _rebuilt(kind: type[Error], message: str, hint: str, place: int | None) -> Error:
    return kind(message, hint=hint, place=place)
