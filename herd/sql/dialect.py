"""The SQL that is written here: DuckDB's, with what people of MySQL and of the original expect.

Invariants:
- A tree of this dialect says the same in DuckDB's: only more is read, nothing is read differently.
- A type keeps its length, which DuckDB leaves out; FLOAT is the standard's, 64 bits, REAL has 32.
- Every parameter knows where in the text it stands.
- The index of a list stays as it is written: to count from 0 in between, types would be guessed
  again for each pair of brackets of `a[1][1]…`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parser import Parser
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from herd.sql.alter_grammar import AlterGrammar
from herd.sql.long_lists import LongLists
from herd.turns import give_way

CHECKPOINT: Final = "CHECKPOINT"
"""What a table may be read AS OF: `FROM t AS OF CHECKPOINT 7`, or `'newest'`."""

ParseNode = Callable[[Any], Any]
_EXPRESSIONS_AT_ONCE: Final = 32
_AS_WRITTEN: Final = "json_access"
"""What sqlglot calls an index that it does not count anew."""


def _question_mark(parser: Parser) -> exp.Placeholder:
    node = parser.expression(exp.Placeholder())
    node.update_positions(parser._prev)
    return node


class HerdParser(AlterGrammar, LongLists):
    """Reads more than DuckDB does, and no statement that it does not know."""

    PLACEHOLDER_PARSERS: ClassVar[dict[TokenType, ParseNode]] = {
        **DuckDBParser.PLACEHOLDER_PARSERS,
        TokenType.PLACEHOLDER: _question_mark,
    }

    _expressions = 0

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        found = super()._parse_bracket(this)
        inner = found
        while isinstance(inner, exp.Bracket) and not inner.args.get(_AS_WRITTEN):
            inner.set(_AS_WRITTEN, True)
            inner = inner.this
        return found

    def _parse_version(self) -> exp.Version | None:
        if not self._match_text_seq("AS", "OF", CHECKPOINT):
            return super()._parse_version()
        place = self._parse_primary()
        version = exp.Version(this=CHECKPOINT, kind="AS OF", expression=place)
        return self.expression(version)

    def _parse_expression(self) -> exp.Expr | None:
        self._expressions += 1
        if self._expressions % _EXPRESSIONS_AT_ONCE == 0:
            give_way()
        # `name: value` is DuckDB's other way to say AS; `(:name` is none.
        if self._curr and self._curr.token_type not in (TokenType.VAR, TokenType.IDENTIFIER):
            return Parser._parse_expression(self)
        return super()._parse_expression()

    def _warn_unsupported(self) -> None:
        token = self._curr or self._prev
        message = f"this is not understood here: {self._find_sql(token, token)}"
        raise ParseError.new(message, highlight=token.text, line=token.line, col=token.col)


class HerdGenerator(DuckDBGenerator):
    """Writes what the parser reads beyond DuckDB's."""

    def version_sql(self, expression: exp.Version) -> str:
        """AS OF CHECKPOINT."""
        return f"AS OF {expression.name} {self.sql(expression, 'expression')}"


class Herd(DuckDB):
    """What sqlglot calls a dialect."""

    INDEX_OFFSET = 0

    class Tokenizer(DuckDB.Tokenizer):
        """Backticks quote names, too; names of types keep their lengths."""

        # `$1` is a parameter: a text in dollars would swallow what comes after it.
        HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {
            **DuckDB.Tokenizer.SINGLE_TOKENS,
            "$": TokenType.PARAMETER,
        }
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **DuckDB.Tokenizer.KEYWORDS,
            "BYTEARRAY": TokenType.VARBINARY,
            "CHAR": TokenType.VARCHAR,
            "CHARACTER": TokenType.VARCHAR,
            "CLOB": TokenType.TEXT,
            "FLOAT": TokenType.DOUBLE,
            "LONGTEXT": TokenType.TEXT,
            "LONGBLOB": TokenType.VARBINARY,
            "MEDIUMTEXT": TokenType.TEXT,
            "NVARCHAR": TokenType.VARCHAR,
            "VARCHAR": TokenType.VARCHAR,
        }

    Parser = HerdParser
    Generator = HerdGenerator
