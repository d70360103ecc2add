"""Queries over a few tables, drawn at random.

Invariants:
- Where the order of rows or of a frame matters, it is asked for whole.
"""

from tests.herd.differential.expressions import Expressions
from tests.herd.differential.shapes import Shape


class Queries(Expressions):
    """Draws queries."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tables: list[Shape] = []

    def query(self) -> str:
        """A SELECT."""
        return self.rng.choice(
            [
                self._plain,
                self._plain,
                self._by_key,
                self._ordered,
                self._grouped,
                self._joined,
                self._joined_by_three,
                self._nested,
                self._combined,
                self._windowed,
            ]
        )()

    def key_is(self, shape: Shape) -> str:
        """A condition that names a row by its whole key."""
        return " AND ".join(f"{name} = {self.key_value(shape, name)}" for name in shape.key)

    def key_value(self, shape: Shape, name: str) -> str:
        """A value for a column of a key."""
        if shape.columns[name] == "int":
            number = self.rng.randrange(40)
            if self.rng.random() < 0.7:
                return str(number)
            place = str(len(self.parameters) + 1)
            self.parameters[place] = number
            return f"${place}"
        return self.value(shape.columns[name])

    def two(self) -> tuple[Shape, Shape]:
        """Two tables, perhaps the same one twice."""
        return self.rng.choice(self.tables), self.rng.choice(self.tables)

    def _plain(self) -> str:
        shape = self.rng.choice(self.tables)
        kinds = self.rng.choices(sorted(set(shape.columns.values())), k=2)
        parts = ", ".join(self.expression(shape, kind, "", 2) for kind in kinds)
        distinct = self.rng.choice(["", "", "DISTINCT "])
        return f"SELECT {distinct}{parts} FROM {shape.name} WHERE {self.condition(shape, '', 2)}"

    def _by_key(self) -> str:
        shape = self.rng.choice(self.tables)
        names = self.rng.choice([", ".join(shape.columns), "*"])
        return f"SELECT {names} FROM {shape.name} WHERE {self.key_is(shape)}"

    def _ordered(self) -> str:
        shape, rng = self.rng.choice(self.tables), self.rng
        keys = ", ".join(
            f"{name} {rng.choice(('ASC', 'DESC'))} NULLS {rng.choice(('FIRST', 'LAST'))}"
            for name in [*rng.sample(list(shape.columns), 1), *shape.key]
        )
        limit = f"LIMIT {rng.randint(0, 9)}" + rng.choice(("", f" OFFSET {rng.randint(0, 5)}"))
        names = ", ".join([*shape.key, self.expression(shape, "int", "", 1)])
        return f"SELECT {names} FROM {shape.name} ORDER BY {keys} {limit}"

    def _grouped(self) -> str:
        shape, rng = self.rng.choice(self.tables), self.rng
        group = rng.choice(list(shape.columns))
        of = rng.choice(shape.of_kind("int", "big", "small", "exact", "real"))
        found = [
            *("COUNT(*)", f"COUNT({of})", f"SUM({of})", f"MIN({of})", f"MAX({of})", f"AVG({of})"),
            *(f"COUNT(DISTINCT {of})", f"SUM(CASE WHEN {self.condition(shape, '', 1)} THEN 1 END)"),
        ]
        parts = ", ".join(rng.sample(found, 3))
        where = f"WHERE {self.condition(shape, '', 1)}"
        if rng.random() < 0.3:
            return f"SELECT {parts} FROM {shape.name} {where}"
        having = rng.choice(["", " HAVING COUNT(*) > 1", f" HAVING SUM({of}) > 0"])
        return f"SELECT {group}, {parts} FROM {shape.name} {where} GROUP BY {group}{having}"

    def _joined(self) -> str:
        left, right = self.two()
        kind = self.rng.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
        on = self._on(left, "l.", right, "r.")
        return (
            f"SELECT l.{left.key[0]}, r.{right.key[0]}, {self.expression(left, 'int', 'l.', 1)} "
            f"FROM {left.name} l {kind} {right.name} r ON {on} "
            f"WHERE {self.condition(self.rng.choice([left]), 'l.', 1)}"
        )

    def _on(self, left: Shape, one: str, right: Shape, other: str) -> str:
        shared = sorted(set(left.columns.values()) & set(right.columns.values()))
        kind = self.rng.choice(shared)
        text = f"{self.column(left, kind, one)} = {self.column(right, kind, other)}"
        if self.rng.random() < 0.3:
            text += f" AND {self.condition(right, other, 0)}"
        return text

    def _joined_by_three(self) -> str:
        one, two = self.two()
        three = self.rng.choice(self.tables)
        return (
            f"SELECT COUNT(*), MIN(a.{one.key[0]}), MAX(c.{three.key[0]}) FROM {one.name} a "
            f"JOIN {two.name} b ON {self._on(one, 'a.', two, 'b.')} "
            f"LEFT JOIN {three.name} c ON {self._on(two, 'b.', three, 'c.')} "
            f"WHERE {self.condition(two, 'b.', 1)}"
        )

    def _nested(self) -> str:
        outer, inner = self.two()
        key = outer.key[0]
        condition = self.condition(inner, "i.", 1)
        a, b = self._number_of(outer), self._number_of(inner)
        word = self.rng.choice(("", "NOT "))
        return self.rng.choice(
            [
                f"SELECT {key}, {a} FROM {outer.name} WHERE {a} {word}IN "
                f"(SELECT i.{b} FROM {inner.name} i WHERE {condition})",
                f"SELECT {key} FROM {outer.name} o WHERE {word}EXISTS "
                f"(SELECT 1 FROM {inner.name} i WHERE i.{b} = o.{a} AND {condition})",
                f"SELECT {key}, (SELECT COUNT(*) FROM {inner.name} i WHERE i.{b} < o.{a}) "
                f"FROM {outer.name} o",
                f"SELECT {key} FROM {outer.name} o WHERE {a} > "
                f"(SELECT MIN(i.{b}) FROM {inner.name} i WHERE {condition})",
                f"WITH w AS (SELECT i.{b} AS m, COUNT(*) AS c FROM {inner.name} i GROUP BY i.{b}) "
                f"SELECT o.{key}, w.c FROM {outer.name} o LEFT JOIN w ON w.m = o.{a}",
                f"SELECT x.k, x.v FROM (SELECT {key} AS k, {a} AS v FROM {outer.name}) x "
                f"WHERE x.v IS {word}NULL",
            ]
        )

    def _number_of(self, shape: Shape) -> str:
        return self.rng.choice(shape.of_kind("int"))

    def _combined(self) -> str:
        one, two = self.two()
        kind = self.rng.choice(sorted(set(one.columns.values()) & set(two.columns.values())))
        word = self.rng.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"])
        where = self.condition(two, "", 1)
        return (
            f"SELECT {self.expression(one, kind, '', 1)} FROM {one.name} {word} "
            f"SELECT {self.column(two, kind, '')} FROM {two.name} WHERE {where}"
        )

    def _windowed(self) -> str:
        shape, rng = self.rng.choice(self.tables), self.rng
        keys = ", ".join(shape.key)
        n = self._number_of(shape)
        over = rng.choice(
            [
                "ROW_NUMBER() OVER (ORDER BY {keys})",
                "SUM({n}) OVER (PARTITION BY {n} ORDER BY {keys})",
                "COUNT(*) OVER (PARTITION BY {n})",
                "RANK() OVER (ORDER BY {n} NULLS FIRST)",
                "LAG({n}) OVER (ORDER BY {keys})",
                "LEAD({n}, 2) OVER (ORDER BY {keys})",
                "MAX({n}) OVER (ORDER BY {keys} ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
                "FIRST_VALUE({n}) OVER (ORDER BY {keys})",
            ]
        ).format(keys=keys, n=n)
        return f"SELECT {keys}, {over} FROM {shape.name} WHERE {self.condition(shape, '', 1)}"
