"""Types of columns between SQLAlchemy and the database.

    ORM                                     column
    SmallInteger, Integer, BigInteger       SMALLINT, INTEGER, BIGINT
    Float, Double; REAL, Float(24)          DOUBLE; REAL
    Numeric(p, s)                           DECIMAL(p, s); without digits DECIMAL(18, 3)
    String(n), Text, Enum                   VARCHAR(n), VARCHAR
    LargeBinary                             BLOB
    DateTime, DateTime(timezone=True)       TIMESTAMP, TIMESTAMPTZ
    Uuid, JSON, ARRAY(Float)                UUID, JSON, FLOAT[]

Invariants:
- A type that is made from what a table says is written as that table says it.
- A type that the database cannot keep is refused when the statement is compiled.
"""

import re
from typing import Any, Final

from sqlalchemy import exc, types
from sqlalchemy.sql.compiler import GenericTypeCompiler

_REAL_BITS_MAX: Final = 24
_WRITTEN: Final = re.compile(r"([A-Z]+(?:\[\])?)(?:\((\d+)(?:,\s*(\d+))?\))?")


class TINYINT(types.Integer):
    """An integer of 8 bits."""

    __visit_name__ = "TINYINT"


class JsonIndex(types.JSON.JSONIndexType):
    """`column["name"]` and `column[0]`, as a path."""

    def bind_processor(self, dialect: Any) -> Any:
        """What makes a path of the index."""
        return lambda index: _path((index,))

    def literal_processor(self, dialect: Any) -> Any:
        """The same, written into the statement."""
        return lambda index: _literal(_path((index,)))


class JsonPath(types.JSON.JSONPathType):
    """`column["names", 0]`, as a path."""

    def bind_processor(self, dialect: Any) -> Any:
        """What makes a path of the steps."""
        return lambda steps: _path(steps)

    def literal_processor(self, dialect: Any) -> Any:
        """The same, written into the statement."""
        return lambda steps: _literal(_path(steps))


def _path(steps: Any) -> str:
    parts = [
        f"[{step}]" if isinstance(step, int) else '."' + str(step).replace('"', '\\"') + '"'
        for step in steps
    ]
    return "$" + "".join(parts)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class HerdTypeCompiler(GenericTypeCompiler):
    """Writes types as the database names them."""

    def visit_TINYINT(self, type_: Any, **kw: Any) -> str:
        """An integer of 8 bits."""
        return "TINYINT"

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        """So many bits as are asked for, 64 if none are."""
        small = type_.precision is not None and type_.precision <= _REAL_BITS_MAX
        return "REAL" if small else "DOUBLE"

    def visit_DOUBLE_PRECISION(self, type_: Any, **kw: Any) -> str:
        """64 bits."""
        return "DOUBLE"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        """An exact number."""
        return str(self.visit_DECIMAL(type_, **kw))

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        """A moment, with a zone or without."""
        return "TIMESTAMPTZ" if type_.timezone else "TIMESTAMP"

    visit_TIMESTAMP = visit_DATETIME

    def visit_TIME(self, type_: Any, **kw: Any) -> str:
        """A time of day; there is none with a zone."""
        if type_.timezone:
            raise exc.CompileError("there is no TIME with a zone: keep a DateTime(timezone=True)")
        return "TIME"

    def visit_BINARY(self, type_: Any, **kw: Any) -> str:
        """Bytes have no length in the definition."""
        return "BLOB"

    visit_VARBINARY = visit_BINARY

    def visit_CLOB(self, type_: Any, **kw: Any) -> str:
        """Text of any length."""
        return "TEXT"

    visit_NCLOB = visit_CLOB

    def visit_JSON(self, type_: Any, **kw: Any) -> str:
        """Text that is valid JSON."""
        return "JSON"

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:
        """A list of floats; of nothing else."""
        if not isinstance(type_.item_type, types.Float) or (type_.dimensions or 1) != 1:
            raise exc.CompileError(f"there is no array of {type_.item_type!r}: use JSON")
        return "FLOAT[]"


_TYPES: Final[dict[str, Any]] = {
    "BOOLEAN": types.BOOLEAN,
    "TINYINT": TINYINT,
    "SMALLINT": types.SMALLINT,
    "INTEGER": types.INTEGER,
    "BIGINT": types.BIGINT,
    "HUGEINT": types.BIGINT,
    "REAL": types.REAL,
    "DOUBLE": types.DOUBLE,
    "BLOB": types.BLOB,
    "DATE": types.DATE,
    "TIME": types.TIME,
    "UUID": types.UUID,
    "JSON": types.JSON,
}


def type_named(text: str | None) -> Any:
    """The type for what a table says of a column; a type of nothing for what nobody knows."""
    found = _WRITTEN.fullmatch(text or "")
    if found is None:
        return types.NullType()
    name, size, scale = found.groups()
    if name == "DECIMAL":
        return types.DECIMAL(int(size), int(scale or 0)) if size else types.DECIMAL()
    if name == "VARCHAR":
        return types.VARCHAR(int(size) if size else None)
    if name in ("TIMESTAMP", "TIMESTAMPTZ"):
        return types.TIMESTAMP(timezone=name == "TIMESTAMPTZ")
    if name == "FLOAT[]":
        return types.ARRAY(types.REAL)
    return _TYPES.get(name, types.NullType)()
