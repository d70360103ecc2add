"""Expressions and conditions over a table's columns, drawn at random.

Invariants:
- An expression has the kind that was asked for, in all three databases.
- A parameter is named by its number, so the order in which parts are drawn does not matter.
"""

import random
from typing import Any

from tests.herd.differential.shapes import KINDS, NUMBERS, Shape, literal

PATTERNS = ("a%", "%o%", "_o_", "%", "a\\_b", "%%")


class Expressions:
    """Draws expressions; `parameters` are those of the statement that is being drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"differential {seed}")
        self.parameters: dict[str, Any] = {}
        self.plain = False
        """Whether literals are all that may be drawn, no parameters."""

    def value(self, kind: str) -> str:
        """A constant of a kind, as a literal or as a parameter."""
        value = self.rng.choice(KINDS[kind].values)
        if KINDS[kind].literal and (self.plain or self.rng.random() < 0.8):
            return literal(value)
        name = str(len(self.parameters) + 1)
        self.parameters[name] = value
        return f"${name}"

    def column(self, shape: Shape, kind: str, prefix: str) -> str | None:
        """A column of a kind, if there is one."""
        names = shape.of_kind(kind)
        return prefix + self.rng.choice(names) if names else None

    def expression(self, shape: Shape, kind: str, prefix: str, depth: int) -> str:
        """Something of a kind."""
        rng = self.rng
        column = self.column(shape, kind, prefix)
        draw = rng.random()
        if depth == 0 or draw < 0.35 or not KINDS[kind].literal:
            return column if column is not None and rng.random() < 0.75 else self.value(kind)

        def inner(wanted: str) -> str:
            return self.expression(shape, wanted, prefix, depth - 1)

        if draw < 0.45 and column is not None:
            return f"COALESCE({column}, {self.value(kind)})"
        if draw < 0.55:
            condition = self.condition(shape, prefix, depth - 1)
            # A literal alone has no kind in SQL: a column gives it one.
            first = column if column is not None else inner(kind)
            return f"CASE WHEN {condition} THEN {first} ELSE {inner(kind)} END"
        if kind == "text":
            return self._text(inner)
        if kind == "bool":
            return f"({self.condition(shape, prefix, depth - 1)})"
        if kind in NUMBERS:
            return self._number(kind, inner)
        return column if column is not None else self.value(kind)

    def _text(self, inner: Any) -> str:
        return str(
            self.rng.choice(
                [
                    f"({inner('text')} || {literal(self.rng.choice(KINDS['text'].values))})",
                    f"UPPER({inner('text')})",
                    f"LOWER({inner('text')})",
                    f"SUBSTR({inner('text')}, {self.rng.randint(1, 2)}, 2)",
                    f"REPLACE({inner('text')}, 'o', '0')",
                    f"TRIM({inner('text')})",
                    f"NULLIF({inner('text')}, 'cow')",
                ]
            )
        )

    def _number(self, kind: str, inner: Any) -> str:
        rng = self.rng
        found = [
            f"({inner(kind)} + {inner(kind)})",
            f"({inner(kind)} - {inner(kind)})",
            f"({inner(kind)} * {rng.choice((-1, 2, 3))})",
            f"(- {inner(kind)})",
            f"ABS({inner(kind)})",
            f"NULLIF({inner(kind)}, {self.value(kind)})",
        ]
        if kind == "int":
            found += [f"LENGTH({inner('text')})", f"({inner('int')} % {rng.choice((2, 3, 7))})"]
        if kind == "big":
            found.append(f"CAST({inner('int')} AS BIGINT)")
        if kind == "real":
            found += [f"CAST({inner('int')} AS DOUBLE)", f"({inner('real')} / 2.0)"]
        return rng.choice(found)

    def condition(self, shape: Shape, prefix: str, depth: int) -> str:
        """Something that is true, false or unknown of a row."""
        rng = self.rng
        if depth > 0 and rng.random() < 0.35:
            left = self.condition(shape, prefix, depth - 1)
            right = self.condition(shape, prefix, depth - 1)
            return rng.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        kind = rng.choice(sorted(set(shape.columns.values())))
        if kind == "bool" and rng.random() < 0.5:
            return self.column(shape, "bool", prefix) or "TRUE"
        left = self.column(shape, kind, prefix) or self.value(kind)
        if KINDS[kind].literal and rng.random() < 0.4:
            left = self.expression(shape, kind, prefix, 1)
        draw = rng.random()
        if draw < 0.15:
            return f"{left} IS {rng.choice(('', 'NOT '))}NULL"
        if draw < 0.25:
            values = ", ".join(self.value(kind) for _ in range(3))
            values += rng.choice(("", "", ", NULL"))
            return f"{left} {rng.choice(('', 'NOT '))}IN ({values})"
        if draw < 0.35:
            word = rng.choice(("", "NOT "))
            return f"{left} {word}BETWEEN {self.value(kind)} AND {self.value(kind)}"
        if draw < 0.45 and kind == "text":
            escape = rng.choice(("", " ESCAPE '\\'"))
            pattern = rng.choice(PATTERNS if escape else PATTERNS[:4])
            return f"{left} {rng.choice(('', 'NOT '))}LIKE '{pattern}'{escape}"
        sign = rng.choice(("=", "=", "<>", "<", "<=", ">", ">="))
        return f"{left} {sign} {self.expression(shape, kind, prefix, 1)}"
