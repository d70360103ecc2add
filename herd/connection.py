"""Connections and cursors of PEP 249 for threads. `herd.connect` makes them.

Invariants:
- Any number of threads may use one connection; its statements run one after the other.
- What is asked of a closed connection or cursor raises `InterfaceError`.
- A row that is named by its whole key, outside a transaction, is read in the caller's own thread.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from herd import errors
from herd.errors import InterfaceError, ParametersMismatch, ProgrammingError
from herd.fetching import BATCH_ROWS, Fetching, Row, data_frame, polars_frame
from herd.hopping import Hopper

if TYPE_CHECKING:
    import pyarrow

    from herd.sql.session import Session
    from herd.wire.session import RemoteSession

Parameters = Sequence[Any] | Mapping[str, Any]


class Connection:
    """A session in one tablespace. A transaction begins with the first statement after another.

    As a context manager it commits at the end of the block, or rolls back if it raised, and closes.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(
        self,
        session: "Session | RemoteSession",
        hopper: Hopper,
        let_go: Callable[[], None] | None = None,
    ) -> None:
        """`let_go` is called once, when the connection is closed."""
        self._session = session
        self._hopper = hopper
        self._let_go = let_go
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def session(self) -> "Session | RemoteSession":
        """The session, for who works on the event loop."""
        return self._session

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._session.transaction is not None

    @property
    def autocommit(self) -> bool:
        """Whether each statement outside BEGIN is a transaction of its own."""
        return self._session.autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        self.check()
        if self._session.transaction is not None and on != self._session.autocommit:
            raise ProgrammingError("a transaction is open", hint="commit or roll back first")
        self._session.autocommit = bool(on)

    @property
    def isolation_level(self) -> str:
        """What transactions that begin from now on see: READ COMMITTED or SNAPSHOT."""
        return str(self._session.isolation.value)

    @isolation_level.setter
    def isolation_level(self, level: str) -> None:
        self.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")

    def cursor(self) -> "Cursor":
        """A new cursor. Cursors of one connection share its transaction."""
        self.check()
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters = ()) -> "Cursor":
        """Run a statement in a new cursor, which is returned."""
        return self.cursor().execute(operation, parameters)

    def executemany(self, operation: str, rows: Iterable[Sequence[Any]]) -> "Cursor":
        """Run a statement once for each tuple of parameters in a new cursor; all or nothing."""
        return self.cursor().executemany(operation, rows)

    def commit(self) -> None:
        """Commit the open transaction, durably; without one nothing happens.

        Raises `TransactionEnded`, `LeaderUnavailable` (nothing happened), `CommitUnknown`.
        """
        self.check()
        self._hopper.call(self._session.commit)

    def rollback(self) -> None:
        """Take back what the open transaction did; without one nothing happens."""
        self.check()
        self._hopper.call(self._session.rollback)

    def close(self) -> None:
        """Roll back what is open, and let go. May be called twice; a forked child only forgets."""
        if self._closed:
            return
        self._closed = True
        if not self._hopper.usable:
            return
        try:
            self._hopper.call(self._session.close)
        finally:
            if self._let_go is not None:
                self._let_go()

    def check(self) -> None:
        """Raise `InterfaceError` if it is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed", hint="connect again")

    def __enter__(self) -> "Connection":
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._closed:
                if kind is None:
                    self.commit()
                else:
                    self.rollback()
        finally:
            self.close()


class Cursor(Fetching):
    """Runs statements of a connection and fetches what they answer."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self._read_now = connection.session.read_now
        self._execute = connection.session.execute
        self._call = connection._hopper.call

    def execute(self, operation: str, parameters: Parameters = ()) -> "Cursor":
        """Run a statement; `?` in it stand for the parameters, or `:name` for those of a mapping.

        Returns the cursor. Raises what is in `herd.errors`.
        """
        if self._closed or self.connection._closed:
            self._check()
            self.connection.check()
        if not isinstance(operation, str):
            raise InterfaceError(_no_text(operation))
        self._result = None
        result = self._read_now(operation, parameters)
        if result is None:
            result = self._call(self._execute, operation, parameters)
        self._result = result
        self._next = 0
        self._page = []
        return self

    def executemany(self, operation: str, rows: Iterable[Sequence[Any]]) -> "Cursor":
        """Run a statement once for each tuple of parameters: all of them or, on an error, none.

        `rowcount` is their sum. Returns the cursor.
        """
        self._check()
        self.connection.check()
        if not isinstance(operation, str):
            raise InterfaceError(_no_text(operation))
        self._result = None
        self._take(self._call(self.connection.session.execute_many, operation, _listed(rows)))
        return self

    def fetchone(self) -> Row | None:
        """The next row, None after the last one."""
        self.connection.check()
        return self._one()

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, at most `size` (default: `arraysize`)."""
        self.connection.check()
        return self._many(size)

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        self.connection.check()
        return self._all()

    def fetch_arrow_table(self) -> "pyarrow.Table":
        """All rows that are left as an Arrow table, without making Python values of them."""
        self.connection.check()
        return self._arrow()

    fetch_arrow = fetch_arrow_table
    arrow = fetch_arrow_table

    def fetch_record_batch(self, rows_per_batch: int = BATCH_ROWS) -> "pyarrow.RecordBatchReader":
        """All rows that are left, as Arrow batches of at most so many rows."""
        self.connection.check()
        return self._batches(rows_per_batch)

    def fetch_df(self) -> Any:
        """All rows that are left as a data frame of pandas.

        Raises `NotSupportedError` where pandas is not installed.
        """
        return data_frame(self.fetch_arrow_table())

    fetchdf = fetch_df
    df = fetch_df

    def fetch_polars(self) -> Any:
        """All rows that are left as a data frame of polars.

        Raises `NotSupportedError` where polars is not installed.
        """
        return polars_frame(self.fetch_arrow_table())

    pl = fetch_polars

    def close(self) -> None:
        """Forget the rows; `rowcount` stays. May be called twice."""
        self._forget_rows()

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _no_text(operation: object) -> str:
    return f"a statement is a text, not {type(operation).__name__}"


def _listed(rows: Iterable[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    if isinstance(rows, list | tuple):
        return rows
    if not isinstance(rows, Iterable):
        raise ParametersMismatch(f"the rows are a {type(rows).__name__}", hint="give a list")
    return list(rows)
