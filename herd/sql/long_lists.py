"""`x IN (1, 2, …)` with thousands of constants, read as one piece of text.

Each constant would be a node that is made, walked and copied several times before the query engine
reads the list once.

Invariants:
- Only constants are taken together, as they are written; the query engine reads them the same way.
- In a statement, a condition with such a list is evaluated by the query engine alone. In a
  definition, the constants of the list are parsed one by one.
"""

import re
from collections.abc import Sequence
from typing import Final

from sqlglot import exp
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

WORDS_MAX: Final = 20_000
"""The most tokens that a query may have, not counting constants in lists."""
INSERT_WORDS_MAX: Final = 100_000
"""The same for an INSERT, not counting plain constants: rows may hold `DATE '2024-02-29'`."""
_PARTS: Final = re.compile(
    r"(?P<text>'[^']*')|(?P<bracket>\()|--[^\n]*|/\*(?:.*?\*/|.*)"
    r"|(?P<word>\b(?<!\d\.)(?!(?:null|true|false|default)\b)[a-z_][\w$.]*)"
    r"|\"[^\"]*\"|`[^`]*`|;|\$(?!\w)|/{1,2}(?!\*)|[^\s\w$.(),'\"`?;/-]+"
    r"|(?P<rest>(?:[\s,.)?\d]{1,64}|-(?!-)|(?<=\d)_|(?<=[\d.])e[+-]?\d+){1,64}|\w[\w$.]*|.)",
    re.IGNORECASE | re.DOTALL,
)
"""Texts, brackets, and words as far as they are easy to recognize; quoted names and comments count.

`rest` does not count. It is matched anyway, one piece at a time: a search that finds nothing in a
long text would hold the interpreter lock, and so block all other users, until it ends.
"""
_INSERTS: Final = frozenset({"insert", "upsert", "replace"})
LONG: Final = 1_000
"""A list of fewer tokens is parsed one by one: about 500 constants, as commas count, too."""
_CONSTANTS: Final = (TokenType.NUMBER, TokenType.STRING, TokenType.NULL)

_OF_ROWS: Final = frozenset(
    {*_CONSTANTS, TokenType.COMMA, TokenType.DASH, TokenType.L_PAREN, TokenType.R_PAREN}
    | {TokenType.PLACEHOLDER, TokenType.TRUE, TokenType.FALSE, TokenType.DEFAULT}
)

_OPENING: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSING: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})
_IN_SUBSCRIPTS: Final = frozenset({TokenType.NUMBER, TokenType.STRING, TokenType.COLON})
_OPERANDS: Final = frozenset(
    {TokenType.NUMBER, TokenType.STRING, TokenType.NULL, TokenType.TRUE, TokenType.FALSE}
    | {TokenType.VAR, TokenType.IDENTIFIER, TokenType.DOT, TokenType.PLACEHOLDER, TokenType.NOT}
)
_COMPARISON: Final = 2
_RANKS: Final = {
    TokenType.OR: 0,
    TokenType.AND: 1,
    **dict.fromkeys((TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.GT), _COMPARISON),
    **dict.fromkeys((TokenType.LTE, TokenType.GTE, TokenType.IS), _COMPARISON),
    **dict.fromkeys((TokenType.PLUS, TokenType.DASH), 3),
    **dict.fromkeys((TokenType.STAR, TokenType.SLASH), 4),
}
"""Operators by how closely they bind, the loosest first."""


def is_hopeless(text: str) -> bool:
    """Whether a quick count finds too many words in a text, so that it need not be tokenized."""
    if len(text) <= WORDS_MAX:
        return False
    has_rows = _has_rows(text)
    words_max = INSERT_WORDS_MAX if has_rows else WORDS_MAX
    words = brackets = 0
    # One by one: all at once they would keep the interpreter, and so all other users, for long.
    for part in _PARTS.finditer(text):
        kind = part.lastgroup
        words += kind is None or kind == "word"
        brackets += kind == "bracket"
        if words > words_max or (brackets > words_max and not has_rows):
            return True
    return False


def _has_rows(text: str) -> bool:
    """Whether a text begins like an INSERT with VALUES."""
    first = ""
    for part in _PARTS.finditer(text):
        if part.lastgroup != "word":
            continue
        word = part[0].lower()
        first = first or word
        if first not in _INSERTS or word in ("values", "select"):
            return word == "values"
    return False


def has_too_many_words(tokens: Sequence[Token]) -> bool:
    """Whether a statement has more tokens than are allowed."""
    if len(tokens) <= WORDS_MAX:
        return False
    if tokens[0].token_type == TokenType.INSERT:
        return sum(token.token_type not in _OF_ROWS for token in tokens) > INSERT_WORDS_MAX
    words = place = 0
    while place < len(tokens):
        words += 1
        if tokens[place].token_type == TokenType.IN:
            place += constants_at(tokens, place + 1)
        place += 1
    return words > WORDS_MAX


def nests_too_deeply(tokens: Sequence[Token], depth_max: int) -> bool:
    """Whether the tree of a statement is certain to be deeper, so that it need not be parsed.

    Brackets in brackets, `[]` after `[]`, and operators of one rank in a row make a level each.
    """
    if not depth_max < len(tokens) <= WORDS_MAX:
        return False
    open_rows: list[list[int]] = [[0, 0, 0, 0, 0]]
    subscripts, before = 0, None
    for token in tokens:
        kind = token.token_type
        if kind in _OPENING:
            subscripts += kind == TokenType.L_BRACKET and before == TokenType.R_BRACKET
            open_rows.append([0, 0, 0, 0, 0])
        elif kind in _CLOSING:
            if len(open_rows) > 1:
                open_rows.pop()
        else:
            if kind not in _IN_SUBSCRIPTS:
                subscripts = 0
            rank = _RANKS.get(kind)
            in_row = open_rows[-1]
            if rank is not None:
                # One that follows no operand has only one.
                in_row[rank] += before in _OPERANDS or before in _CLOSING
                # What binds more closely begins anew.
                in_row[rank + 1 :] = [0] * (len(in_row) - rank - 1)
                # A comparison is not part of a row of comparisons.
                in_row[_COMPARISON] = 0
            elif kind not in _OPERANDS:
                in_row[:] = [0, 0, 0, 0, 0]
            if max(in_row) > depth_max:
                return True
        if len(open_rows) > depth_max or subscripts > depth_max:
            return True
        before = kind
    return False


def constants_at(tokens: Sequence[Token], start: int) -> int:
    """How many tokens the list at a place has, if it has only constants and is closed; else 0."""
    size = len(tokens)
    if start >= size or tokens[start].token_type != TokenType.L_PAREN:
        return 0
    place = start + 1
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


class LongLists(DuckDBParser):
    """The part of a parser that reads IN."""

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        count = constants_at(self._tokens, self._index)
        if count < LONG:
            return super()._parse_in(this, alias=alias)
        self._advance()
        # Text between the constants is left out: the query engine parses some of it differently.
        constants = self._tokens[self._index : self._index + count]
        text = "".join([self._find_sql(token, token) for token in constants])
        self._advance(count)
        found = self.expression(exp.In(this=this, expressions=[exp.Var(this=text)]))
        self._match_r_paren(found)
        return found
