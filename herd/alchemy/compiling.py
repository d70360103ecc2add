"""SQLAlchemy's statements in the words of the database.

Invariants:
- What the database does not have is refused with the reason, never left out in silence.
"""

from typing import Any, Final

from sqlalchemy import exc, sql, types
from sqlalchemy.sql.compiler import (
    RESERVED_WORDS,
    DDLCompiler,
    IdentifierPreparer,
    SQLCompiler,
)

_WORDS: Final = """
    alter anti asof at current_catalog describe drop except exclude false fetch filter force
    function glob grouping having ignore ilike insert install intersect lateral limit lists
    macro map maps null offset on or partitioned_by pivot positional qualify regexp returning
    revoke rlike rollback semi show some struct summarize table tables tablesample then true
    uncache unpivot using values when where window with within xor
"""
"""Words that the parser takes for something else where a name may stand."""


class HerdCompiler(SQLCompiler):
    """Queries and changes."""

    def limit_clause(self, select: Any, **kw: Any) -> str:
        """LIMIT and OFFSET, each without the other if need be."""
        text = ""
        if select._limit_clause is not None:
            text += "\n LIMIT " + self.process(select._limit_clause, **kw)
        if select._offset_clause is not None:
            text += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return text

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        """FOR UPDATE; a lock is waited for as long as the database's settings say."""
        asked = select._for_update_arg
        if asked.nowait or asked.skip_locked or asked.read or asked.of:
            raise exc.CompileError("there is FOR UPDATE alone: no NOWAIT, SKIP LOCKED, SHARE or OF")
        return " FOR UPDATE"

    def visit_now_func(self, fn: Any, **kw: Any) -> str:
        """The moment of the statement."""
        return "CURRENT_TIMESTAMP"

    def visit_char_length_func(self, fn: Any, **kw: Any) -> str:
        """The length in characters."""
        return f"length{self.function_argspec(fn)}"

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        """Rows that are none."""
        nulls = ", ".join("NULL" for _ in element_types or [None])
        return f"SELECT {nulls} WHERE 1 = 0"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Whether a regular expression is found in a text."""
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        flags = binary.modifiers["flags"]
        more = "" if flags is None else f", {self.render_literal_value(flags, types.STRINGTYPE)}"
        return f"regexp_matches({left}, {right}{more})"

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """Whether it is not."""
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **kw)}"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        """A text with what was found replaced; every place with the flag `g`."""
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        flags = binary.modifiers["flags"]
        more = "" if flags is None else f", {self.render_literal_value(flags, types.STRINGTYPE)}"
        return f"regexp_replace({left}, {right}{more})"

    def visit_json_getitem_op_binary(
        self, binary: Any, operator: Any, _cast_applied: bool = False, **kw: Any
    ) -> str:
        """A part of a JSON value, as JSON or as the type that is asked for."""
        is_json = binary.type._type_affinity is types.JSON
        if not _cast_applied and not is_json:
            kw["_cast_applied"] = True
            return str(self.process(sql.cast(binary, binary.type), **kw))
        name = "json_extract" if is_json else "json_extract_string"
        return f"{name}({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    visit_json_path_getitem_op_binary = visit_json_getitem_op_binary

    def visit_on_conflict_do_nothing(self, on_conflict: Any, **kw: Any) -> str:
        """Leave rows that are there as they are."""
        return f"ON CONFLICT{self._conflict_target(on_conflict, **kw)} DO NOTHING"

    def visit_on_conflict_do_update(self, on_conflict: Any, **kw: Any) -> str:
        """Change rows that are there."""
        statement: Any = self.stack[-1]["selectable"]
        columns = statement.table.c
        kw["use_schema"] = False
        sets = []
        for key, value in dict(on_conflict.update_values_to_set).items():
            column = columns.get(key) if isinstance(key, str) else key
            if isinstance(value, sql.elements.BindParameter) and value.type._isnull:
                if column is not None:
                    value = value._with_binary_element_type(column.type)
            name = self.preparer.quote(key if column is None else column.name)
            text = self.process(value.self_group(), is_upsert_set=True, **kw)
            sets.append(f"{name} = {text}")
        text = f"ON CONFLICT{self._conflict_target(on_conflict, **kw)} DO UPDATE SET "
        text += ", ".join(sets)
        if on_conflict.update_whereclause is not None:
            where_words = {**kw, "include_table": True}
            text += f" WHERE {self.process(on_conflict.update_whereclause, **where_words)}"
        return text

    def _conflict_target(self, clause: Any, **kw: Any) -> str:
        if clause.inferred_target_whereclause is not None:
            raise exc.CompileError("no unique key has a WHERE: leave index_where out")
        if clause.inferred_target_elements is None:
            return ""
        kw.update(include_table=False, use_schema=False)
        names = [
            self.preparer.quote(element)
            if isinstance(element, str)
            else self.process(element, **kw)
            for element in clause.inferred_target_elements
        ]
        return f" ({', '.join(names)})"


class HerdDdlCompiler(DDLCompiler):
    """Definitions."""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """A column as CREATE TABLE and ADD COLUMN write it."""
        if column.computed is not None:
            raise exc.CompileError(f"{column}: there are no computed columns; make a view")
        kind = self.dialect.type_compiler_instance.process(column.type, type_expression=column)
        text = f"{self.preparer.format_column(column)} {kind}"
        default = self.get_column_default_string(column)
        if default is not None:
            text += f" DEFAULT {default}"
        if column.identity is not None:
            _check_identity(column)
            return f"{text} NOT NULL AUTO_INCREMENT"
        if not column.nullable:
            text += " NOT NULL"
        if column.table is not None and column is column.table._autoincrement_column:
            if column.server_default is None:
                text += " AUTO_INCREMENT"
        return text


def _check_identity(column: Any) -> None:
    asked = column.identity
    if asked.always or (asked.start or 1) != 1 or (asked.increment or 1) != 1 or asked.cycle:
        raise exc.CompileError(f"{column}: values are counted from 1 on, one by one, as a default")


class HerdIdentifierPreparer(IdentifierPreparer):
    """Quotes names that the parser would take for something else."""

    reserved_words = {*RESERVED_WORDS, *_WORDS.split()}
