"""`x IN (1, 2, …)` with thousands of constants, read as one piece of text.

Each constant would be a node that is made, walked and copied several times before the query engine
reads the list once.

Invariants:
- Only constants are taken together, as they are written; the query engine reads them the same way.
- A condition with such a list is evaluated by the query engine alone.
"""

from typing import Final

from sqlglot import exp
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

LONG: Final = 1_000
"""A list of fewer constants is read one by one."""
_CONSTANTS: Final = (TokenType.NUMBER, TokenType.STRING, TokenType.NULL)


class LongLists(DuckDBParser):
    """The part of a parser that reads IN."""

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        count = self._count_constants()
        if count < LONG:
            return super()._parse_in(this, alias=alias)
        self._advance()
        first = self._curr
        self._advance(count)
        text = self._find_sql(first, self._prev)
        found = self.expression(exp.In(this=this, expressions=[exp.Var(this=text)]))
        self._match_r_paren(found)
        return found

    def _count_constants(self) -> int:
        """How many tokens the list from here on has, if it is of constants and ends; else 0."""
        tokens, start = self._tokens, self._index
        if self._curr.token_type != TokenType.L_PAREN:
            return 0
        place, size = start + 1, self._tokens_size
        while place + 1 < size:
            if tokens[place].token_type == TokenType.DASH:
                place += 1
            if tokens[place].token_type not in _CONSTANTS or place + 1 >= size:
                return 0
            after = tokens[place + 1].token_type
            if after == TokenType.R_PAREN:
                return place - start
            if after != TokenType.COMMA:
                return 0
            place += 2
        return 0
