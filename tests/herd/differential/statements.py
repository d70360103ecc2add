"""Statements that change rows and definitions, drawn at random.

Invariants:
- What a statement does to the tables' definitions is kept as its effect, and told apart from the
  drawing: only who sees that it succeeded makes it so.
"""

import copy
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.herd.differential.queries import Queries
from tests.herd.differential.shapes import FIRST, KINDS, Shape, literal

_PARAMETER: Final = re.compile(r"\$(\d+)")
Effect = Callable[[], None]


@dataclass
class Statement:
    """One statement. `effect` changes the shapes, if it succeeds."""

    text: str
    parameters: dict[str, Any] = field(default_factory=dict)
    effect: Effect | None = None
    judged: bool = True
    """Whether the others can be asked whether it may succeed."""

    @property
    def kind(self) -> str:
        """Its first word."""
        return self.text.split(" ", 1)[0]

    @property
    def given(self) -> list[Any]:
        """The parameters' values, in order."""
        return [self.parameters[str(number + 1)] for number in range(len(self.parameters))]

    @property
    def answers(self) -> bool:
        """Whether rows come of it."""
        return self.kind in ("SELECT", "WITH") or " RETURNING " in self.text

    @property
    def changes(self) -> bool:
        """Whether it is about rows or definitions."""
        return self.kind not in ("SELECT", "WITH")


def shapes() -> list[Shape]:
    """The tables that every run begins with."""
    return [
        Shape(
            "cow",
            {"id": "int", "n": "int", "t": "text", "d": "real", "p": "exact", "b": "bool"},
            ("id",),
            required={"id"},
            defaults={"n": "3"},
        ),
        Shape(
            "calf",
            {"x": "int", "y": "text", "n": "int", "dam": "int", "born": "date"},
            ("x", "y"),
            required={"x", "y"},
            checks=["n < 5000"],
            parent=("dam", "cow", "id", ""),
        ),
        Shape(
            "day",
            {"born": "date", "n": "int", "m": "big", "u": "uuid", "r": "bytes", "w": "time"},
            ("born",),
            required={"born"},
            unique=["m"],
        ),
    ]


class Generator(Queries):
    """Draws statements over tables whose definitions they change."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tables = shapes()
        rule = self.rng.choice(["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
        self.tables[1].parent = ("dam", "cow", "id", rule)
        self._count = 0
        self.within = False
        """Whether a transaction is open: no view is made, which a rollback would bring back."""
        self._ahead: deque[Callable[[], Statement]] = deque()

    def statement(self) -> Statement:
        """The next statement."""
        self.parameters = {}
        if self._ahead:
            return self._ahead.popleft()()
        draw = self.rng.random()
        shape = self.rng.choice(self.tables)
        if draw < 0.24:
            return self._made(self._insert(shape))
        if draw < 0.36:
            return self._made(self._update(shape))
        if draw < 0.41:
            return self._made(self._delete(shape))
        if draw < 0.47:
            return self._definition(shape)
        if draw < 0.48 and not self.within:
            return self._view()
        return self._made(self.query())

    @property
    def ready(self) -> bool:
        """Whether a transaction may begin."""
        return not self._ahead

    def state(self) -> list[Shape]:
        """The definitions as they are, for `go_back`."""
        return copy.deepcopy(self.tables)

    def go_back(self, state: list[Shape]) -> None:
        """A transaction was rolled back."""
        self.tables[:] = copy.deepcopy(state)

    def _made(self, text: str) -> Statement:
        used = list(dict.fromkeys(_PARAMETER.findall(text)))
        places = {name: str(place) for place, name in enumerate(used, 1)}
        text = _PARAMETER.sub(lambda found: f"${places[found.group(1)]}", text)
        return Statement(text, {places[name]: self.parameters[name] for name in used})

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    # Rows

    def _insert(self, shape: Shape) -> str:
        rng = self.rng
        names = list(shape.columns)
        if rng.random() < 0.3:
            names = [name for name in names if name in shape.required or rng.random() < 0.6]
        if rng.random() < 0.1:
            return self._insert_of_query(shape)
        count = rng.choice([1, 1, 1, 2, 5])
        rows = ", ".join(
            "(" + ", ".join(self._value_of(shape, name) for name in names) + ")"
            for _ in range(count)
        )
        text = f"INSERT INTO {shape.name} ({', '.join(names)}) VALUES {rows}"
        draw = rng.random()
        others = [name for name in names if name not in shape.key]
        if draw < 0.15:
            text += " ON CONFLICT DO NOTHING"
        elif draw < 0.4 and others and count == 1:
            # Of two rows with one key DuckDB counts one.
            name = rng.choice(others)
            value = rng.choice(
                [f"excluded.{name}", f"COALESCE({shape.name}.{name}, excluded.{name})"]
            )
            text += f" ON CONFLICT ({', '.join(shape.key)}) DO UPDATE SET {name} = {value}"
            if rng.random() < 0.3:
                text += f" WHERE {self.condition(shape, shape.name + '.', 0)}"
        return text + self._returning(shape)

    def _insert_of_query(self, shape: Shape) -> str:
        parts = [
            f"{name} + 40" if name in shape.key and kind == "int" else name
            for name, kind in shape.columns.items()
        ]
        return (
            f"INSERT INTO {shape.name} ({', '.join(shape.columns)}) SELECT {', '.join(parts)} "
            f"FROM {shape.name} WHERE {self.condition(shape, '', 1)}"
        )

    def _value_of(self, shape: Shape, name: str) -> str:
        if name in shape.key:
            return self.key_value(shape, name)
        if self.rng.random() < 0.15:
            return "NULL"
        if shape.parent is not None and shape.parent[0] == name:
            return str(self.rng.randrange(40))
        return self.value(shape.columns[name])

    def _returning(self, shape: Shape) -> str:
        if self.rng.random() < 0.85:
            return ""
        names = [name for name in shape.columns if KINDS[shape.columns[name]].literal]
        kind = shape.columns[self.rng.choice(names)]
        # DuckDB takes no parameters there.
        self.plain = True
        text = f" RETURNING {', '.join(shape.key)}, {self.expression(shape, kind, '', 1)}"
        self.plain = False
        return text

    def _update(self, shape: Shape) -> str:
        rng = self.rng
        others = [name for name in shape.columns if name not in shape.key]
        chosen = rng.sample(others, rng.randint(1, min(2, len(others))))
        sets = ", ".join(f"{name} = {self._assigned(shape, name)}" for name in chosen)
        return f"UPDATE {shape.name} SET {sets} WHERE {self._where(shape)}{self._returning(shape)}"

    def _assigned(self, shape: Shape, name: str) -> str:
        rng, kind = self.rng, shape.columns[name]
        if rng.random() < 0.05 and kind == "int":
            other = rng.choice(self.tables)
            return f"(SELECT MAX(o.{rng.choice(other.of_kind('int'))}) FROM {other.name} o)"
        if rng.random() < 0.05:
            return "NULL"
        return self.expression(shape, kind, "", 2)

    def _delete(self, shape: Shape) -> str:
        return f"DELETE FROM {shape.name} WHERE {self._where(shape)}{self._returning(shape)}"

    def _where(self, shape: Shape) -> str:
        return self.key_is(shape) if self.rng.random() < 0.5 else self.condition(shape, "", 2)

    # Definitions

    def _definition(self, shape: Shape) -> Statement:
        return self.rng.choice(
            [
                self._create_index,
                self._create_index,
                self._drop_index,
                self._add_column,
                self._add_column,
                self._drop_column,
                self._rename_column,
                self._rename_table,
                self._alter_column,
                self._create_table,
                self._drop_table,
                self._truncate,
            ]
        )(shape)

    def _create_index(self, shape: Shape) -> Statement:
        unique, name = self.rng.random() < 0.3, self._name("i")
        column = self.rng.choice(list(shape.columns))
        word = "UNIQUE " if unique else ""

        def effect() -> None:
            shape.indexes[name] = (unique, column)

        return Statement(f"CREATE {word}INDEX {name} ON {shape.name} ({column})", {}, effect)

    def _drop_index(self, shape: Shape) -> Statement:
        if not shape.indexes:
            return self._create_index(shape)
        name = self.rng.choice(sorted(shape.indexes))

        def effect() -> None:
            del shape.indexes[name]

        return Statement(f"DROP INDEX {name}", {}, effect)

    def _add_column(self, shape: Shape) -> Statement:
        if len(shape.columns) > 9:
            return self._drop_column(shape)
        shape.number += 1
        rng, name, kind = self.rng, f"e{shape.number}", self.rng.choice(sorted(KINDS))
        text = f"ALTER TABLE {shape.name} ADD COLUMN {name} {KINDS[kind].type}"
        default = literal(rng.choice(KINDS[kind].values)) if KINDS[kind].literal else None
        required = default is not None and rng.random() < 0.2
        if required:
            text += " NOT NULL"
        if default is not None and (required or rng.random() < 0.7):
            text += f" DEFAULT {default}"
        else:
            default = None

        def effect() -> None:
            shape.columns[name] = kind
            if default is not None:
                shape.defaults[name] = default
            if required:
                shape.required.add(name)

        return Statement(text, {}, effect)

    def _drop_column(self, shape: Shape) -> Statement:
        free = shape.free()
        if len(free) < 2:
            return self._create_index(shape)
        name = self.rng.choice(free)

        def effect() -> None:
            del shape.columns[name]
            shape.defaults.pop(name, None)
            shape.required.discard(name)

        return Statement(f"ALTER TABLE {shape.name} DROP COLUMN {name}", {}, effect)

    def _rename_column(self, shape: Shape) -> Statement:
        free = shape.free()
        if not free:
            return self._create_index(shape)
        shape.number += 1
        old, new = self.rng.choice(free), f"e{shape.number}"

        def effect() -> None:
            shape.columns = {new if n == old else n: k for n, k in shape.columns.items()}
            if old in shape.defaults:
                shape.defaults[new] = shape.defaults.pop(old)
            if old in shape.required:
                shape.required.remove(old)
                shape.required.add(new)

        return Statement(f"ALTER TABLE {shape.name} RENAME COLUMN {old} TO {new}", {}, effect)

    def _rename_table(self, shape: Shape) -> Statement:
        old, new = shape.name, self._name("t")

        def effect() -> None:
            shape.name = new
            for other in self.tables:
                if other.parent is not None and other.parent[1] == old:
                    other.parent = (other.parent[0], new, *other.parent[2:])

        return Statement(f"ALTER TABLE {old} RENAME TO {new}", {}, effect)

    def _alter_column(self, shape: Shape) -> Statement:
        free = shape.free()
        if not free:
            return self._create_index(shape)
        name, start = self.rng.choice(free), f"ALTER TABLE {shape.name} ALTER COLUMN"
        kind = KINDS[shape.columns[name]]
        value = literal(self.rng.choice(kind.values)) if kind.literal else "NULL"

        def set_default() -> None:
            shape.defaults[name] = value

        def drop_default() -> None:
            shape.defaults.pop(name, None)

        def widen() -> None:
            shape.columns[name] = "big"

        text, effect = self.rng.choice(
            [
                (f"{start} {name} SET DEFAULT {value}", set_default),
                (f"{start} {name} DROP DEFAULT", drop_default),
                (f"{start} {name} SET NOT NULL", lambda: shape.required.add(name)),
                (f"{start} {name} DROP NOT NULL", lambda: shape.required.discard(name)),
                *([(f"{start} {name} TYPE BIGINT", widen)] if kind is KINDS["small"] else []),
            ]
        )
        return Statement(text, {}, effect, judged=False)

    def _create_table(self, shape: Shape) -> Statement:
        if len(self.tables) > 4:
            return self._drop_table(shape)
        rng = self.rng
        columns = {"id": "int", **{f"c{n}": rng.choice(FIRST) for n in range(rng.randint(2, 5))}}
        made = Shape(self._name("t"), columns, ("id",), required={"id"})
        if rng.random() < 0.3:
            made.required.add("c1")
        if rng.random() < 0.3:
            made.unique.append("c0")
        [text] = made.created()
        return Statement(text, {}, lambda: self.tables.append(made))

    def _drop_table(self, shape: Shape) -> Statement:
        extra = self.tables[3:]
        if not extra:
            return self._create_index(shape)
        going = self.rng.choice(extra)

        def effect() -> None:
            self.tables[:] = [one for one in self.tables if one.name != going.name]

        return Statement(f"DROP TABLE {going.name}", {}, effect)

    def _truncate(self, shape: Shape) -> Statement:
        parents = {one.parent[1] for one in self.tables if one.parent is not None}
        if shape.name in parents or self.rng.random() < 0.7:
            return self._create_index(shape)
        return Statement(f"TRUNCATE TABLE {shape.name}", {}, None, judged=False)

    def _view(self) -> Statement:
        name, query = self._name("v"), self.query()
        while self.parameters or query.startswith("SELECT *") or "(" in query.split("FROM")[0]:
            # A view has no parameters, and its columns want names that are all different.
            self.parameters = {}
            shape = self.rng.choice(self.tables)
            query = f"SELECT {', '.join(shape.columns)} FROM {shape.name} WHERE 1 = 1"
        self._ahead.append(lambda: Statement(f"SELECT * FROM {name}"))
        self._ahead.append(lambda: Statement(f"SELECT COUNT(*) FROM {name}"))
        self._ahead.append(lambda: Statement(f"DROP VIEW {name}"))
        return Statement(f"CREATE VIEW {name} AS {query}")
