"""SQL expressions over one row, as Python closures.

    compiled = compile_expression(tree, Names.of(table))
    value = compiled(row, given)

`row` holds stored values, `given` the values of the statement's parameters and, as its last one,
the moment of the statement. The answer is a Python value.

Invariants:
- What is answered is what the query engine would answer; where that is not certain it raises
  `CannotEvaluate`, when it is compiled or when it is evaluated, and the query engine is asked.
- Numbers are exact: integers and decimals never pass through floating point, except by `/`.
- NULL is None, and three-valued logic holds.
- What a statement asks for takes little time and memory, whatever its values are: it runs on the
  event loop, where nothing can stop it. Long texts and large expressions are for the query engine.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp

from herd.errors import DataError, NoSuchColumn
from herd.rows import Row
from herd.schema import Column, Table
from herd.sql import scalars
from herd.sql.parsing import constants_of, place_of
from herd.sql.scalars import CannotEvaluate
from herd.sql.type_names import column_type
from herd.types import TEXT, Kind, Stored, accepting, returning

Evaluate = Callable[[Sequence[Any], Sequence[Any]], Any]
Store = Callable[[Row, Sequence[Any]], Stored]


@dataclass(frozen=True, slots=True)
class Names:
    """What the names of columns mean: for each name of a table its columns and their first place.

    A name without a table's is looked for in the first one. `bounded`: the expression is a
    statement's own, not one of a definition.
    """

    tables: dict[str, tuple[Table, int]]
    bounded: bool = True

    @classmethod
    def of(cls, table: Table, alias: str = "") -> "Names":
        """The columns of one table, under its name or another."""
        return cls({(alias or table.name).lower(): (table, 0)})

    @classmethod
    def of_definition(cls, table: Table) -> "Names":
        """The columns of a table in an expression of its own definition."""
        return cls(cls.of(table).tables, bounded=False)

    def find(self, node: exp.Column) -> tuple[int, Column]:
        """A column and its place in the row. Raises `NoSuchColumn`, `CannotEvaluate`."""
        if node.table:
            found = self.tables.get(node.table.lower())
            if found is None:
                raise NoSuchColumn(
                    f"there is no table {node.table} in the statement", place=place_of(node)
                )
            table, start = found
        elif self.tables:
            table, start = next(iter(self.tables.values()))
        else:
            raise NoSuchColumn(f"no column can stand here: {node.name}", place=place_of(node))
        column = table.by_name.get(node.name.lower())
        if column is None:
            raise missing_column(table, node)
        return start + column.number, column


NO_NAMES: Final = Names({})
DEFINED: Final = Names({}, bounded=False)
"""The same for an expression of a definition."""
_STEPS_MAX: Final = 128
"""An expression of more operators and functions is for the query engine."""
_LEAVES: Final = (exp.Literal, exp.Placeholder, exp.Column, exp.Identifier, exp.Null, exp.Boolean)


def missing_column(table: Table, node: exp.Expr) -> NoSuchColumn:
    """The error for a name that is no column of a table, with its place."""
    names = ", ".join(column.name for column in table.visible)
    return NoSuchColumn(
        f"table {table.name} has no column {node.name}",
        hint=f"it has {names}",
        place=place_of(node),
    )


def compile_expression(tree: exp.Expr, names: Names) -> Evaluate:
    """Make a closure. Raises `CannotEvaluate`, `NoSuchColumn`, `ValueInvalid`."""
    whole = tree.unnest()
    if isinstance(whole, exp.Column):
        return _read(whole, names)
    if names.bounded and not isinstance(whole, exp.Literal | exp.Placeholder):
        steps = sum(not isinstance(node, _LEAVES) for node in whole.walk())
        if steps > _STEPS_MAX:
            raise CannotEvaluate
    if isinstance(whole, exp.Cast):
        return _cast(whole, names)
    return _operand(whole, names)


def _operand(tree: exp.Expr, names: Names) -> Evaluate:
    """As `compile_expression`, of what something is made of.

    The query engine computes with a REAL in its own 24 bits: that is left to it.
    """
    make = _MAKERS.get(type(tree))
    if make is None or _is_real(tree, names):
        raise CannotEvaluate
    return make(tree, names)


def _is_real(tree: exp.Expr, names: Names) -> bool:
    if isinstance(tree, exp.Column):
        return names.find(tree)[1].type.kind is Kind.REAL
    return isinstance(tree, exp.Cast) and column_type(tree.args["to"]).kind is Kind.REAL


def storing(tree: exp.Expr, names: Names, table: Table, column: Column) -> Store:
    """Make a closure that answers a value as a column stores it. Raises as `compile_expression`."""
    name = f"{table.name}.{column.name}"
    accept = accepting(column.type)
    kind = column.type.kind
    if isinstance(tree, exp.Placeholder):
        place = _place_of_parameter(tree)

        def store_given(row: Row, given: Sequence[Any]) -> Stored:
            value = given[place]
            if value is None:
                return None
            try:
                stored: Stored = accept(value)
                return stored
            except DataError as error:
                raise about(name, error) from None

        return store_given
    evaluate = compile_expression(tree, names)
    if kind is Kind.VARCHAR:
        evaluate = _as_text(evaluate, tree)

    def store(row: Row, given: Sequence[Any]) -> Stored:
        value = evaluate(row, given)
        if value is None:
            return None
        try:
            stored: Stored = accept(scalars.assigned(value, kind))
            return stored
        except DataError as error:
            raise about(name, error) from None

    return store


def about(name: str, error: DataError) -> DataError:
    """The same error, saying of which column it is."""
    return type(error)(f"{name}: {error.message}", hint=error.hint)


def constant(tree: exp.Expr) -> bool:
    """Whether an expression needs no row."""
    return tree.find(exp.Column, exp.Query) is None


# Leaves


def _literal(tree: exp.Expr, names: Names) -> Evaluate:
    value = literal_value(tree)
    return lambda row, given: value


def literal_value(tree: exp.Expr) -> Any:
    """The value of a literal."""
    if tree.is_string:
        return tree.name
    text = tree.name.replace("_", "")
    if len(text) > scalars.TEXT_MAX:
        raise CannotEvaluate
    if text.isdigit():
        return int(text)
    try:
        return float(text) if "e" in text.lower() else Decimal(text)
    except ArithmeticError:
        raise CannotEvaluate from None


def _boolean(tree: exp.Expr, names: Names) -> Evaluate:
    value = bool(tree.this)
    return lambda row, given: value


def _null(tree: exp.Expr, names: Names) -> Evaluate:
    return lambda row, given: None


def _read(tree: exp.Expr, names: Names) -> Evaluate:
    assert isinstance(tree, exp.Column)
    place, column = names.find(tree)
    convert = returning(column.type)
    if convert is None:
        return lambda row, given: row[place]

    def read(row: Sequence[Any], given: Sequence[Any]) -> Any:
        stored = row[place]
        return None if stored is None else convert(stored)

    return read


def _place_of_parameter(tree: exp.Placeholder) -> int:
    return int(tree.name) - 1


def _parameter(tree: exp.Expr, names: Names) -> Evaluate:
    assert isinstance(tree, exp.Placeholder)
    place = _place_of_parameter(tree)
    return lambda row, given: scalars.known(given[place])


def _moment(tree: exp.Expr, names: Names) -> Evaluate:
    return lambda row, given: given[-1]


def _today(tree: exp.Expr, names: Names) -> Evaluate:
    def today(row: Sequence[Any], given: Sequence[Any]) -> datetime.date:
        moment: datetime.datetime = given[-1]
        return moment.date()

    return today


def _inside(tree: exp.Expr, names: Names) -> Evaluate:
    return _operand(tree.this, names)


# Operators


def _binary(work: Callable[[Any, Any], Any]) -> "Make":
    """An operator whose answer is NULL if a side is."""

    def make(tree: exp.Expr, names: Names) -> Evaluate:
        left = _operand(tree.this, names)
        right = _operand(tree.expression, names)

        def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
            one, other = left(row, given), right(row, given)
            return None if one is None or other is None else work(one, other)

        return evaluate

    return make


def _of_texts(work: Callable[[Any, Any], Any], bounded_work: Callable[[Any, Any], Any]) -> "Make":
    """The same of texts, which are short where a statement chooses them."""
    unbounded, bounded = _binary(work), _binary(bounded_work)
    return lambda tree, names: (bounded if names.bounded else unbounded)(tree, names)


def _comparison(work: Callable[[Any, Any], bool]) -> "Make":
    def make(tree: exp.Expr, names: Names) -> Evaluate:
        left, right = _of_one_type(tree.this, tree.expression, names)

        def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
            one, other = left(row, given), right(row, given)
            return None if one is None or other is None else work(one, other)

        return evaluate

    return make


def _of_one_type(one: exp.Expr, other: exp.Expr, names: Names) -> tuple[Evaluate, Evaluate]:
    """Both sides of a comparison: a text that is compared with a column is of the column's type."""
    left, right = one.unnest(), other.unnest()
    if isinstance(left, exp.Column) and right.is_string:
        return _operand(left, names), _text_as(left, right, names)
    if isinstance(right, exp.Column) and left.is_string:
        return _text_as(right, left, names), _operand(right, names)
    if isinstance(left, exp.Column) and _is_real(left, names):
        return _read(left, names), _real_constant(right)
    if isinstance(right, exp.Column) and _is_real(right, names):
        return _real_constant(left), _read(right, names)
    return _operand(left, names), _operand(right, names)


def _text_as(column: exp.Column, text: exp.Expr, names: Names) -> Evaluate:
    kind = names.find(column)[1].type
    try:
        value = scalars.cast(text.name, kind)
    except DataError:
        # The query engine reads more ways to write a day or an hour, or says what is wrong.
        raise CannotEvaluate from None
    return lambda row, given: value


def _real_constant(tree: exp.Expr) -> Evaluate:
    """What a number is beside a REAL: one of 24 bits, too."""
    sign = -1 if isinstance(tree, exp.Neg) else 1
    number = tree.this.unnest() if isinstance(tree, exp.Neg) else tree
    if not isinstance(number, exp.Literal) or number.is_string:
        raise CannotEvaluate
    value = scalars.as_real(literal_value(number)) * sign
    return lambda row, given: value


def _and(tree: exp.Expr, names: Names) -> Evaluate:
    parts = [_operand(part, names) for part in tree.flatten()]

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> bool | None:
        unknown = False
        for part in parts:
            value = scalars.truth(part(row, given))
            if value is False:
                return False
            unknown = unknown or value is None
        return None if unknown else True

    return evaluate


def _or(tree: exp.Expr, names: Names) -> Evaluate:
    parts = [_operand(part, names) for part in tree.flatten()]

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> bool | None:
        unknown = False
        for part in parts:
            value = scalars.truth(part(row, given))
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False

    return evaluate


def _unary(work: Callable[[Any], Any]) -> "Make":
    """A function of one value whose answer is NULL if that is."""

    def make(tree: exp.Expr, names: Names) -> Evaluate:
        if any(value for key, value in tree.args.items() if key != "this"):
            raise CannotEvaluate
        inner = _operand(tree.this, names)

        def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
            value = inner(row, given)
            return None if value is None else work(value)

        return evaluate

    return make


def _of_text(work: Callable[[Any], Any]) -> "Make":
    """A function of one text, which is short where a statement chooses it."""
    unbounded, bounded = _unary(work), _unary(lambda value: work(scalars.short(value)))
    return lambda tree, names: (bounded if names.bounded else unbounded)(tree, names)


def _is(tree: exp.Expr, names: Names) -> Evaluate:
    if isinstance(tree.expression, exp.Null):
        value = compile_expression(tree.this, names)
        return lambda row, given: value(row, given) is None
    inner = _operand(tree.this, names)
    if isinstance(tree.expression, exp.Boolean):
        wanted = bool(tree.expression.this)
        return lambda row, given: scalars.truth(inner(row, given)) is wanted
    raise CannotEvaluate


def _in(tree: exp.Expr, names: Names) -> Evaluate:
    items = tree.expressions
    if not names.bounded and len(items) == 1 and isinstance(items[0], exp.Var):
        items = constants_of(items[0].name)
    if not items:
        raise CannotEvaluate
    pairs = [_of_one_type(tree.this, item, names) for item in items]

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> bool | None:
        unknown = False
        for left, right in pairs:
            one, other = left(row, given), right(row, given)
            if one is None or other is None:
                unknown = True
            elif scalars.equal(one, other):
                return True
        return None if unknown else False

    return evaluate


def _between(tree: exp.Expr, names: Names) -> Evaluate:
    if tree.args.get("symmetric"):
        raise CannotEvaluate
    low = exp.GTE(this=tree.this.copy(), expression=tree.args["low"].copy())
    high = exp.LTE(this=tree.this.copy(), expression=tree.args["high"].copy())
    return _operand(exp.And(this=low, expression=high), names)


def _coalesce(tree: exp.Expr, names: Names) -> Evaluate:
    parts = [_operand(part, names) for part in (tree.this, *tree.expressions)]

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        for part in parts:
            value = part(row, given)
            if value is not None:
                return value
        return None

    return evaluate


def _case(tree: exp.Expr, names: Names) -> Evaluate:
    subject = tree.this
    branches: list[tuple[Evaluate, Evaluate]] = []
    for branch in tree.args["ifs"]:
        condition = branch.this
        if subject is not None:
            condition = exp.EQ(this=subject.copy(), expression=condition.copy())
        branches.append((_operand(condition, names), _operand(branch.args["true"], names)))
    default = tree.args.get("default")
    otherwise = None if default is None else _operand(default, names)

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        for condition, answer in branches:
            if scalars.truth(condition(row, given)):
                return answer(row, given)
        return None if otherwise is None else otherwise(row, given)

    return evaluate


def _cast(tree: exp.Expr, names: Names) -> Evaluate:
    kind = column_type(tree.args["to"])
    inner = _operand(tree.this, names)
    bounded = names.bounded

    if kind.kind is Kind.VARCHAR:
        return _as_text(inner, tree.this)

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        value = inner(row, given)
        if value is None:
            return None
        return scalars.cast(scalars.short(value) if bounded else value, kind)

    return evaluate


def _as_text(inner: Evaluate, tree: exp.Expr) -> Evaluate:
    """A value as text. A number that stands beside others has as many digits as the longest."""
    chosen = tree.find(exp.Case, exp.Coalesce, exp.Nullif) is not None

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        value = inner(row, given)
        if value is None or type(value) is str:
            return value
        if chosen and type(value) in (int, Decimal):
            raise CannotEvaluate
        return scalars.cast(value, TEXT)

    return evaluate


def _join(tree: exp.Expr, names: Names) -> Evaluate:
    left = _as_text(_operand(tree.this, names), tree.this)
    right = _as_text(_operand(tree.expression, names), tree.expression)
    bounded = names.bounded

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        one, other = left(row, given), right(row, given)
        if one is None or other is None:
            return None
        if bounded:
            return scalars.short(one) + scalars.short(other)
        return one + other

    return evaluate


def _nullif(tree: exp.Expr, names: Names) -> Evaluate:
    left, right = _of_one_type(tree.this, tree.expression, names)

    def evaluate(row: Sequence[Any], given: Sequence[Any]) -> Any:
        one, other = left(row, given), right(row, given)
        same = one is not None and other is not None and scalars.equal(one, other)
        return None if same else one

    return evaluate


Make = Callable[[exp.Expr, Names], Evaluate]
_LIKE: Final = _of_texts(scalars.like, scalars.short_like)
_UNLIKE: Final = _of_texts(scalars.unlike, scalars.short_unlike)
_MAKERS: Final[dict[type[exp.Expr], Make]] = {
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Column: _read,
    exp.Placeholder: _parameter,
    exp.CurrentTimestamp: _moment,
    exp.CurrentDate: _today,
    exp.Paren: _inside,
    exp.Neg: _unary(scalars.negative),
    exp.Add: _binary(scalars.add),
    exp.Sub: _binary(scalars.subtract),
    exp.Mul: _binary(scalars.multiply),
    exp.Div: _binary(scalars.divide),
    exp.IntDiv: _binary(scalars.divide_whole),
    exp.Mod: _binary(scalars.remainder),
    exp.DPipe: _join,
    exp.EQ: _comparison(scalars.equal),
    exp.NEQ: _comparison(lambda one, other: not scalars.equal(one, other)),
    exp.LT: _comparison(scalars.less),
    exp.GT: _comparison(lambda one, other: scalars.less(other, one)),
    exp.LTE: _comparison(lambda one, other: not scalars.less(other, one)),
    exp.GTE: _comparison(lambda one, other: not scalars.less(one, other)),
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _unary(scalars.negated),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: lambda t, n: (_UNLIKE if t.args.get("negate") else _LIKE)(t, n),
    exp.Coalesce: _coalesce,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.Nullif: _nullif,
    exp.Lower: _of_text(scalars.lower),
    exp.Upper: _of_text(scalars.upper),
    exp.Length: _unary(scalars.length),
    exp.Abs: _unary(scalars.absolute),
}
