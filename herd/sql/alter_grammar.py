"""ALTER TABLE as a list of actions, and keys as people of MySQL write them.

Invariants:
- Every action of a statement is read, or none of it is taken: a form that is not known is refused
  at its place.
"""

from typing import Final

from sqlglot import exp
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

_CONSTRAINTS: Final = (
    *("CONSTRAINT", "UNIQUE", "CHECK", "INDEX", "KEY"),
    *("FOREIGN KEY", "PRIMARY KEY"),
)
_DROPPED: Final = ("CONSTRAINT", "CHECK", "INDEX", "KEY")


class AlterGrammar(DuckDBParser):
    """The part of a parser that reads ALTER."""

    def _parse_alter(self) -> exp.Alter | exp.Command:
        start = self._prev
        if not self._match_set((TokenType.TABLE, TokenType.VIEW)):
            return self._parse_as_command(start)
        kind = self._prev.text.upper()
        exists = self._parse_exists()
        table = self._parse_table(schema=True)
        actions = self._parse_csv(self._parse_action)
        if not actions or self._curr:
            self.raise_error("this is not understood here")
        return self.expression(exp.Alter(this=table, kind=kind, exists=exists, actions=actions))

    def _parse_action(self) -> exp.Expr | None:
        if self._match_text_seq("ADD"):
            return self._parse_added()
        if self._match_text_seq("DROP"):
            return self._parse_dropped()
        if self._match_text_seq("RENAME"):
            return self._parse_renamed()
        if self._match_text_seq("MODIFY"):
            return self._parse_modified(rename=False)
        if self._match_text_seq("CHANGE"):
            return self._parse_modified(rename=True)
        if self._match_text_seq("ALTER"):
            return self._parse_alter_table_alter()
        if self._match_text_seq("SET"):
            return self._parse_setting()
        return None

    def _parse_added(self) -> exp.Expr | None:
        if not self._match_text_seq("COLUMN") and self._match_texts(_CONSTRAINTS, advance=False):
            found = self._parse_constraint()
            if found is not None:
                return self.expression(exp.AddConstraint(expressions=[found]))
        self._match_text_seq("COLUMN")
        exists = self._parse_exists(not_=True)
        definition = self._parse_field_def()
        if not isinstance(definition, exp.ColumnDef):
            return None
        definition.set("exists", exists)
        return definition

    def _parse_dropped(self) -> exp.Expr | None:
        if self._match(TokenType.PRIMARY_KEY):
            return self.expression(exp.Drop(kind="PRIMARY KEY", tables=[]))
        kind = "COLUMN"
        if self._match(TokenType.FOREIGN_KEY):
            kind = "FOREIGN KEY"
        elif not self._match_text_seq("COLUMN") and self._next and self._next.text not in (",", ""):
            if self._match_texts(_DROPPED):
                kind = self._prev.text.upper()
        exists = self._parse_exists()
        name = self._parse_id_var()
        self._match_text_seq("RESTRICT")
        if self._match_text_seq("CASCADE"):
            self.raise_error("this is not understood here: CASCADE")
        return name and self.expression(exp.Drop(kind=kind, tables=[name], exists=exists))

    def _parse_renamed(self) -> exp.Expr | None:
        if self._match_texts(("TO", "AS")):
            return self.expression(exp.AlterRename(this=self._parse_table(schema=True)))
        self._match_text_seq("COLUMN")
        exists = self._parse_exists()
        old = self._parse_id_var()
        if old is None or not self._match_text_seq("TO"):
            return None
        new = self._parse_id_var()
        return new and self.expression(exp.RenameColumn(this=old, to=new, exists=exists))

    def _parse_modified(self, *, rename: bool) -> exp.Expr | None:
        self._match_text_seq("COLUMN")
        old = self._parse_id_var() if rename else None
        definition = self._parse_field_def()
        if not isinstance(definition, exp.ColumnDef):
            return None
        return self.expression(exp.ModifyColumn(this=definition, rename_from=old))

    def _parse_setting(self) -> exp.Expr | None:
        wrapped = self._match(TokenType.L_PAREN)
        name = self._parse_id_var()
        if name is None or not self._match(TokenType.EQ):
            return None
        value = self._parse_string() or self._parse_id_var()
        if wrapped:
            self._match_r_paren()
        setting = exp.Property(this=name, value=value)
        return self.expression(exp.AlterSet(expressions=[setting]))

    def _parse_create(self) -> exp.Create | exp.Command:
        # Of the original: the kind of an index, which is one here.
        hinted = self._curr and self._curr.text.upper() in ("HASH", "BRIN")
        if hinted and self._next and self._next.token_type == TokenType.INDEX:
            self._advance()
        return super()._parse_create()

    def _parse_constraint(self) -> exp.Expr | None:
        index = self._index
        named = self._match(TokenType.IDENTIFIER, advance=False)
        if not named and self._match_texts(("KEY", "INDEX")):
            found = self._parse_key()
            if found is not None:
                return found
            self._retreat(index)
        return super()._parse_constraint()

    def _parse_key(self) -> exp.Expr | None:
        """`KEY name (a, b)` in a definition; None where KEY is the name of a column."""
        unnamed = self._match(TokenType.L_PAREN, advance=False)
        name = None if unnamed else self._parse_id_var()
        if not self._match(TokenType.L_PAREN):
            return None
        columns = []
        while column := self._parse_id_var(any_token=False):
            columns.append(column)
            if not self._match(TokenType.COMMA):
                break
        if not columns or not self._match(TokenType.R_PAREN):
            return None
        return self.expression(exp.IndexColumnConstraint(this=name, expressions=columns))
