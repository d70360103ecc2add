"""A statement's shape: its text without a value, for whoever reads logs.

Invariants:
- What the tokenizer takes for a literal is not in it, nor anything of a text that it cannot read.
"""

from typing import Final

_CHARACTERS_MAX: Final = 500
_LITERALS: Final = ("STRING", "NUMBER", "LITERAL")


def shape_of(text: str) -> str:
    """The words of a statement with `?` in the place of values; many in a row are one.

    >>> shape_of("SELECT * FROM cow WHERE name = 'Elsa' AND id IN (1, 2, 3) -- mine")
    'SELECT * FROM cow WHERE name = ? AND id IN ( ? )'
    """
    # Only what is slow is ever asked for.
    from sqlglot import tokenize
    from sqlglot.errors import SqlglotError

    begin = text[: 4 * _CHARACTERS_MAX]
    try:
        tokens = tokenize(begin, read="postgres")
    except SqlglotError:
        try:
            # It may have been cut within a literal.
            tokens = tokenize(begin[: max(begin.rfind("'"), 0)], read="postgres")
        except SqlglotError:
            return "a statement that cannot be read"
    words: list[str] = []
    for token in tokens:
        literal = any(kind in token.token_type.name for kind in _LITERALS)
        quoted = token.token_type.name == "IDENTIFIER"
        word = "?" if literal else f'"{token.text}"' if quoted else token.text
        if word == "?" and words[-2:] == ["?", ","]:
            words.pop()
            continue
        words.append(word)
    shape = " ".join(words)
    return shape if len(shape) <= _CHARACTERS_MAX else shape[: _CHARACTERS_MAX - 3] + "..."
