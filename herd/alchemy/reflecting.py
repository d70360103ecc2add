"""What tables there are and how they are made, for SQLAlchemy: read from the system tables.

Invariants:
- One inspector reads each system table once.
- A name is found in any case of letters, and answered as it was written.
"""

from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import default, reflection

from herd.alchemy.types import type_named

_COLUMNS = """
SELECT table_name, column_name, data_type, is_nullable, auto_increment, default_value,
    primary_position FROM syscolumns ORDER BY table_name, ordinal_position
"""
_KEYS = """
SELECT k.table_name, k.index_name, i.index_type, k."unique", k.column_name
FROM sysindexcolumns k JOIN sysindexes i
    ON i.table_name = k.table_name AND i.index_name = k.index_name
ORDER BY k.table_name, k.index_name, k.ordinal_position
"""
_FOREIGN = """
SELECT table_name, foreign_key_name, column_name, parent_table_name, parent_column_name,
    on_delete, on_update FROM sysforeignkeys ORDER BY table_name, foreign_key_name, ordinal_position
"""
_TABLES = "SELECT table_name, is_view, hidden_key FROM systables ORDER BY lower(table_name)"

Rows = dict[str, list[Any]]
"""By the name of the table in lower case."""


class Reflection(default.DefaultDialect):
    """The half of the dialect that looks at what is there."""

    @reflection.cache
    def get_table_names(self, connection: Any, schema: Any = None, **kw: Any) -> list[str]:
        """The tables."""
        return [row[0] for row in self._objects(connection, **kw) if not row[1]]

    @reflection.cache
    def get_view_names(self, connection: Any, schema: Any = None, **kw: Any) -> list[str]:
        """The views."""
        return [row[0] for row in self._objects(connection, **kw) if row[1]]

    def get_temp_table_names(self, connection: Any, schema: Any = None, **kw: Any) -> list[str]:
        """None: no table is temporary."""
        return []

    def get_temp_view_names(self, connection: Any, schema: Any = None, **kw: Any) -> list[str]:
        """None: no view is temporary."""
        return []

    def get_materialized_view_names(
        self, connection: Any, schema: Any = None, **kw: Any
    ) -> list[str]:
        """None: a view's rows are those of its tables."""
        return []

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """None: a tablespace has no schemas."""
        return []

    def get_sequence_names(self, connection: Any, schema: Any = None, **kw: Any) -> list[str]:
        """None: columns count by themselves."""
        return []

    def has_table(self, connection: Any, table_name: str, schema: Any = None, **kw: Any) -> bool:
        """Whether there is a table or a view of that name."""
        wanted = table_name.lower()
        return any(row[0].lower() == wanted for row in self._objects(connection, **kw))

    def has_sequence(
        self, connection: Any, sequence_name: str, schema: Any = None, **kw: Any
    ) -> bool:
        """Never."""
        return False

    def has_index(
        self, connection: Any, table_name: str, index_name: str, schema: Any = None, **kw: Any
    ) -> bool:
        """Whether a table has an index of that name."""
        if not self.has_table(connection, table_name, **kw):
            return False
        found = self.get_indexes(connection, table_name, **kw)
        return any(index["name"].lower() == index_name.lower() for index in found)

    @reflection.cache
    def get_view_definition(
        self, connection: Any, view_name: str, schema: Any = None, **kw: Any
    ) -> str:
        """The statement that makes the view."""
        name = self._found(connection, view_name, **kw)[0]
        return str(self._definition(connection, "VIEW", name))

    @reflection.cache
    def get_columns(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> list[Any]:
        """The columns of a table or a view, in order."""
        name, is_view, _ = self._found(connection, table_name, **kw)
        if is_view:
            return self._columns_of_view(connection, name)
        rows = self._grouped(connection, _COLUMNS, **kw).get(name.lower(), [])
        return [
            {
                "name": row[1],
                "type": type_named(row[2]),
                "nullable": row[3],
                "default": row[5],
                "autoincrement": row[4],
                "primary_key": 0 if row[6] is None else row[6] + 1,
            }
            for row in rows
        ]

    @reflection.cache
    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> Any:
        """The primary key; none of a table that was made without one."""
        name, is_view, hidden = self._found(connection, table_name, **kw)
        if is_view or hidden:
            return {"constrained_columns": [], "name": None}
        rows = self._grouped(connection, _COLUMNS, **kw).get(name.lower(), [])
        keyed = sorted((row[6], row[1]) for row in rows if row[6] is not None)
        return {"constrained_columns": [column for _, column in keyed], "name": None}

    @reflection.cache
    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> list[Any]:
        """The references to other tables."""
        name = self._found(connection, table_name, **kw)[0]
        found: dict[str, Any] = {}
        for row in self._grouped(connection, _FOREIGN, **kw).get(name.lower(), []):
            key = found.setdefault(
                row[1],
                {
                    "name": row[1],
                    "constrained_columns": [],
                    "referred_schema": None,
                    "referred_table": row[3],
                    "referred_columns": [],
                    "options": _rules(row[5], row[6]),
                },
            )
            key["constrained_columns"].append(row[2])
            key["referred_columns"].append(row[4])
        return list(found.values())

    @reflection.cache
    def get_indexes(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> list[Any]:
        """The indexes; those that a UNIQUE made among them, those that come with references not.

        An index that a reference made is made again with the reference.
        """
        found = []
        keys = self.get_foreign_keys(connection, table_name, **kw)
        refer = [key["constrained_columns"] for key in keys]
        for name, kind, unique, columns in self._keys(connection, table_name, **kw):
            if columns in refer and not unique and name.endswith(f"_{'_'.join(columns)}_index"):
                continue
            index = {"name": name, "column_names": columns, "unique": unique}
            if kind == "constraint":
                index["duplicates_constraint"] = name
            found.append(index)
        return found

    @reflection.cache
    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> list[Any]:
        """What UNIQUE says in the definition."""
        return [
            {"name": name, "column_names": columns}
            for name, kind, _, columns in self._keys(connection, table_name, **kw)
            if kind == "constraint"
        ]

    @reflection.cache
    def get_check_constraints(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> list[Any]:
        """The conditions of a table, read from its definition."""
        name, is_view, _ = self._found(connection, table_name, **kw)
        if is_view:
            return []
        return checks_in(self._definition(connection, "TABLE", name))

    def get_table_comment(
        self, connection: Any, table_name: str, schema: Any = None, **kw: Any
    ) -> Any:
        """There are none."""
        raise NotImplementedError

    # What the above is made of

    def _objects(self, connection: Any, **kw: Any) -> list[Any]:
        rows: list[Any] = self._rows(connection, _TABLES, info_cache=kw.get("info_cache"))
        return rows

    def _found(self, connection: Any, name: str, **kw: Any) -> Any:
        """A table or view: its name, whether it is a view, whether its key is hidden."""
        for row in self._objects(connection, **kw):
            if row[0].lower() == name.lower():
                return row
        raise exc.NoSuchTableError(name)

    def _keys(self, connection: Any, table_name: str, **kw: Any) -> list[Any]:
        name = self._found(connection, table_name, **kw)[0]
        found: dict[str, Any] = {}
        for row in self._grouped(connection, _KEYS, **kw).get(name.lower(), []):
            if row[2] != "primary":
                found.setdefault(row[1], (row[1], row[2], row[3], []))[3].append(row[4])
        return list(found.values())

    def _grouped(self, connection: Any, query: str, **kw: Any) -> Rows:
        grouped: Rows = {}
        for row in self._rows(connection, query, info_cache=kw.get("info_cache")):
            grouped.setdefault(row[0].lower(), []).append(row)
        return grouped

    @reflection.cache
    def _rows(self, connection: Any, query: str, **kw: Any) -> list[Any]:
        return list(connection.exec_driver_sql(query).fetchall())

    def _columns_of_view(self, connection: Any, name: str) -> list[Any]:
        quoted = self.identifier_preparer.quote_identifier(name)
        result = connection.exec_driver_sql(f"SELECT * FROM {quoted} LIMIT 0")
        found = []
        for column, code, _, _, precision, scale, _ in result.cursor.description:
            text = f"{code}({precision},{scale})" if code == "DECIMAL" else code
            found.append(
                {"name": column, "type": type_named(text), "nullable": True, "default": None}
            )
        result.close()
        return found

    def _definition(self, connection: Any, kind: str, name: str) -> str:
        quoted = self.identifier_preparer.quote_identifier(name)
        row = connection.exec_driver_sql(f"SHOW CREATE {kind} {quoted}").fetchone()
        return str(row[1])


def checks_in(definition: str) -> list[Any]:
    """The CHECKs that a CREATE TABLE of our own writing says, each with its name."""
    from sqlglot import exp

    from herd.sql.parsing import expression_text, parse_tree

    first = definition.split(";\n", 1)[0]
    found = []
    for node in parse_tree(first).find_all(exp.Constraint):
        inner = node.expressions[0]
        if isinstance(inner, exp.CheckColumnConstraint):
            found.append({"name": node.name, "sqltext": expression_text(inner.this)})
    return found


def _rules(on_delete: str, on_update: str) -> dict[str, str]:
    rules = {"ondelete": on_delete, "onupdate": on_update}
    return {name: rule for name, rule in rules.items() if rule != "RESTRICT"}
