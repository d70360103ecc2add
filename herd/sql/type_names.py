"""The types that SQL names, as types of columns.

Invariants:
- Every name stands for exactly one type; a name that has no type here is refused, never guessed.
"""

from typing import Final

from sqlglot import exp

from herd.errors import NotSupportedError, ValueOutOfRange
from herd.types import DECIMAL_DIGITS_MAX, ColumnType, Kind

_D: Final = exp.DType
_KINDS: Final = {
    _D.BOOLEAN: Kind.BOOLEAN,
    _D.TINYINT: Kind.TINYINT,
    _D.SMALLINT: Kind.SMALLINT,
    _D.INT: Kind.INTEGER,
    _D.MEDIUMINT: Kind.INTEGER,
    _D.BIGINT: Kind.BIGINT,
    _D.FLOAT: Kind.REAL,
    _D.DOUBLE: Kind.DOUBLE,
    _D.TEXT: Kind.VARCHAR,
    _D.TINYTEXT: Kind.VARCHAR,
    _D.MEDIUMTEXT: Kind.VARCHAR,
    _D.LONGTEXT: Kind.VARCHAR,
    _D.CHAR: Kind.VARCHAR,
    _D.NCHAR: Kind.VARCHAR,
    _D.NVARCHAR: Kind.VARCHAR,
    _D.VARBINARY: Kind.BLOB,
    _D.BINARY: Kind.BLOB,
    _D.BLOB: Kind.BLOB,
    _D.TINYBLOB: Kind.BLOB,
    _D.MEDIUMBLOB: Kind.BLOB,
    _D.LONGBLOB: Kind.BLOB,
    _D.DATE: Kind.DATE,
    _D.TIME: Kind.TIME,
    _D.TIMESTAMP: Kind.TIMESTAMP,
    _D.TIMESTAMPNTZ: Kind.TIMESTAMP,
    _D.DATETIME: Kind.TIMESTAMP,
    _D.TIMESTAMPTZ: Kind.TIMESTAMPTZ,
    _D.TIMESTAMPLTZ: Kind.TIMESTAMPTZ,
    _D.UUID: Kind.UUID,
    _D.JSON: Kind.JSON,
    _D.JSONB: Kind.JSON,
}
_OWN_NAMES: Final = {"FLOATARRAY": Kind.FLOATS, "LONG": Kind.BIGINT, "INT64": Kind.BIGINT}
_HINTS: Final = {
    _D.UINT: "use BIGINT",
    _D.UBIGINT: "use DECIMAL(20,0)",
    _D.USMALLINT: "use INTEGER",
    _D.UTINYINT: "use SMALLINT",
    _D.INT128: "use DECIMAL(38,0)",
    _D.INTERVAL: "keep a number of seconds",
}


def column_type(node: exp.Expr | None) -> ColumnType:
    """The type that a statement names. Raises `NotSupportedError`, `ValueOutOfRange`."""
    if not isinstance(node, exp.DataType):
        raise NotSupportedError("a column needs a type")
    name = node.this
    if name in (_D.DECIMAL, _D.BIGDECIMAL):
        return _decimal(node)
    if name == _D.VARCHAR:
        sizes = _numbers(node)
        return ColumnType(Kind.VARCHAR, sizes[0] if sizes else 0)
    if name in (_D.ARRAY, _D.LIST) and node.expressions:
        if column_type(node.expressions[0]).kind in (Kind.REAL, Kind.DOUBLE):
            return ColumnType(Kind.FLOATS)
    kind = _KINDS.get(name)
    if kind is None and name == _D.USERDEFINED:
        kind = _OWN_NAMES.get(str(node.args.get("kind") or "").upper())
    if kind is None:
        text = node.sql("duckdb")
        raise NotSupportedError(f"there is no type {text}", hint=_HINTS.get(name, ""))
    return ColumnType(kind)


def _decimal(node: exp.DataType) -> ColumnType:
    sizes = _numbers(node)
    size, scale = [*sizes, 0][:2] if sizes else (18, 3)
    if not 1 <= size <= DECIMAL_DIGITS_MAX or not 0 <= scale <= size:
        raise ValueOutOfRange(f"DECIMAL({size},{scale}): at most {DECIMAL_DIGITS_MAX} digits")
    return ColumnType(Kind.DECIMAL, size, scale)


def _numbers(node: exp.DataType) -> list[int]:
    return [int(part.name) for part in node.expressions if part.name.isdigit()]
