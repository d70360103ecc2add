"""A query made ready once, for all who ask it with other parameters.

Invariants:
- What is prepared depends on the text, on the catalog and on those of the checkpoints that are
  read, not on parameters nor on the time.
- What is kept has a bound in bytes: a text may be long, and values may stand in it.
- Its parameters are numbered from 1 without gaps; the moment, if it is asked for, is the last.
"""

import datetime
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlglot import exp

from engine import limits
from engine.ports.workers import Workers
from herd.catalog import Catalog
from herd.errors import ParametersMismatch
from herd.reading import Size
from herd.sql.resolving import Past, Source, resolve
from herd.sql.rewriting import MOMENT, named_outputs, rewritten
from herd.sql.small_queries import constant_bytes, is_plain, is_small
from herd.sql.system import is_system
from herd.turns import read_long

_SYSTEM_COLUMNS: Final = 32
"""No system table has more."""
_KEPT_MAX: Final = 256
_KEPT_BYTES_MAX: Final = 32 * limits.MIB
_CHARACTER_BYTES: Final = 64
"""So much memory one character of a statement's text takes with its tree."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The SQL for DuckDB and what stands in it."""

    catalog: Catalog
    past: Past
    """What the checkpoints define that it reads."""
    sql: str
    sources: Sequence[Source]
    numbers: Sequence[int]
    """The statement's numbers of the parameters that it uses."""
    timed: bool
    """Whether the moment is asked for."""
    outputs: int
    """How many values a row of the answer has; 0: it is not plain."""
    text_bytes: int
    """How long the texts in it are."""

    def values(self, parameters: Sequence[Any], moment: datetime.datetime) -> list[Any]:
        """What DuckDB is given. Raises `ParametersMismatch`."""
        if self.numbers and self.numbers[-1] > len(parameters):
            raise ParametersMismatch(
                f"the query has parameter {self.numbers[-1]}, {len(parameters)} are given"
            )
        given = [parameters[number - 1] for number in self.numbers]
        return [*given, moment] if self.timed else given

    def small(self, values: Sequence[Any]) -> Callable[[Iterable[Size | None]], bool] | None:
        """Whether it is small with tables of such sizes; None: never."""
        constants = self.text_bytes + constant_bytes(values)
        return (
            partial(is_small, outputs=self.outputs, constants=constants) if self.outputs else None
        )

    def is_of(self, catalog: Catalog, past: Past) -> bool:
        """Whether it is what these definitions make of its text."""
        return self.catalog is catalog and all(
            past.get(number) is then for number, then in self.past.items()
        )


def prepare(tree: exp.Expr, catalog: Catalog, past: Past, space: str) -> Prepared:
    """Make a query ready; the tree stays as it is.

    Raises `NoSuchTable` and what is not SQL, and `CheckpointWanted`.
    """
    tree = tree.copy()
    named_outputs(tree)
    resolved = resolve(tree, catalog, past, space, is_system)
    read = {source.checkpoint for source in resolved.sources}
    columns = sum(len(source.columns) or _SYSTEM_COLUMNS for source in resolved.sources)
    plain = is_plain(resolved.tree, columns)
    outputs = len(resolved.tree.expressions) if plain else 0
    texts = [node.name for node in tree.find_all(exp.Literal) if node.is_string]
    tree = rewritten(resolved.tree)
    marks = list(tree.find_all(exp.Placeholder))
    numbers = _numbers(marks)
    timed = False
    for node in marks:
        if node.name == MOMENT:
            node.set("this", str(len(numbers) + 1))
            timed = True
        else:
            node.set("this", str(numbers.index(int(node.name)) + 1))
    sql = tree.sql(dialect="duckdb", comments=False)
    then = {number: past[number] for number in read if number is not None}
    return Prepared(
        catalog, then, sql, resolved.sources, numbers, timed, outputs, constant_bytes(texts)
    )


def _numbers(marks: Sequence[exp.Placeholder]) -> list[int]:
    names = {node.name for node in marks} - {MOMENT}
    if not all(name.isdigit() for name in names):
        raise ParametersMismatch("a parameter of a query has no number")
    return sorted(map(int, names))


class PreparedQueries:
    """Those that were asked lately, by their trees, which nobody changes."""

    def __init__(self, space: str) -> None:
        self._space = space
        self._kept: OrderedDict[int, tuple[exp.Expr, Prepared]] = OrderedDict()
        self.size_bytes = 0
        """An estimate of what is kept."""

    def of(self, tree: exp.Expr, catalog: Catalog, past: Past) -> Prepared:
        """A query made ready for a catalog and for those of checkpoints. Raises as `prepare`."""
        found = self._kept.get(id(tree))
        if found is not None and found[0] is tree and found[1].is_of(catalog, past):
            self._kept.move_to_end(id(tree))
            return found[1]
        made = prepare(tree, catalog, past, self._space)
        self._keep(tree, made)
        return made

    async def prepare_long(
        self, tree: exp.Expr, catalog: Catalog, past: Past, workers: Workers
    ) -> None:
        """See that a query is ready, without keeping the loop. Raises as `prepare`."""
        found = self._kept.get(id(tree))
        if found is None or found[0] is not tree or not found[1].is_of(catalog, past):
            made = await read_long(workers, lambda: prepare(tree, catalog, past, self._space))
            self._keep(tree, made)

    def _keep(self, tree: exp.Expr, made: Prepared) -> None:
        self._drop(id(tree))
        self._kept[id(tree)] = (tree, made)
        self.size_bytes += _size_bytes(made)
        while len(self._kept) > _KEPT_MAX or self.size_bytes > _KEPT_BYTES_MAX:
            if len(self._kept) == 1:
                break
            self._drop(next(iter(self._kept)))

    def _drop(self, key: int) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self.size_bytes -= _size_bytes(found[1])


def _size_bytes(made: Prepared) -> int:
    return _CHARACTER_BYTES * len(made.sql)
