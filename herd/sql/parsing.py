"""From the text of one statement to its tree.

Invariants:
- One text is one statement. What is no SQL is refused with the place in the text.
- Parameters are numbered from 1 in the order of the text, whichever way they are written, so a
  tuple of values is all that a tree needs.
- A tree is shared by all who run the text: nobody changes it.
"""

import difflib
import re
import traceback
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from herd.errors import (
    DatabaseError,
    NotSupportedError,
    ParametersMismatch,
    ProgrammingError,
    SqlSyntaxError,
    TooLarge,
)
from herd.sql.dialect import Herd
from herd.sql.long_lists import (
    INSERT_WORDS_MAX,
    WORDS_MAX,
    has_too_many_words,
    is_hopeless,
    nests_too_deeply,
)
from herd.sql.spaces import WORD as TABLESPACE
from herd.sql.spaces import is_about_a_tablespace

TEXT_CHARACTERS_MAX: Final = 4 * 1024 * 1024
LONG_CHARACTERS: Final = 2 * 1024
"""A longer text is read and planned in a worker's thread, and its tree knows that (`is_long`)."""
DEPTH_MAX: Final = 900
"""The maximum nesting depth. The query engine allows 1,000, including its own levels."""
NAME_CHARACTERS_MAX: Final = 255
PARAMETERS_MAX: Final = 65_535
_FREED_AT_ONCE: Final = 1_000
_DIALECT: Final = Herd()
_SPACE: Final = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)+", re.DOTALL)
_SPACES: Final = re.compile(r"(?:\s+|--[^\n]*|/\*(?:.*?\*/|.*))+", re.DOTALL)
"""The same within a text. An unterminated comment extends to the end, so each is read once."""
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_LONG_NAME: Final = re.compile(rf"(?<![^\s()',;])[^\s()',;]{{{NAME_CHARACTERS_MAX}}}")
"""It is tried where a name may begin, and nowhere else: a long text is read once."""
_SEARCHED_AT_ONCE: Final = 16 * 1024
_CONTROL_CHARACTERS_MAX: Final = 16 * 1024
"""The limit for statements split into words on the event loop; EXPLAIN alone may be longer."""
_END: Final = "herd:end"
_SEMICOLON: Final = TokenType.SEMICOLON
_LONG: Final = "herd:long"
_PIECE: Final = re.compile(r'"(?:[^"]|"")+"|`[^`]+`|[^\s;"`]+')
# These say the same as INSERT does, with letters enough to stand in its place.
_UPSERTS: Final = {"UPSERT": "INSERT", "REPLACE": "INSERT "}
_FIRST: Final = (
    *("SELECT", "WITH", "VALUES", "FROM", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP"),
    *("TRUNCATE", "MERGE"),
)
CONTROL: Final = frozenset(
    {
        "ABORT",
        "BEGIN",
        "CHECK",
        "CHECKPOINT",
        "COMMIT",
        "DESC",
        "DESCRIBE",
        "END",
        "EXPLAIN",
        "INGEST",
        "RELEASE",
        "RESTORE",
        "ROLLBACK",
        "SAVEPOINT",
        "SET",
        "SHOW",
        "START",
    }
)
"""First words of the statements that are no business of the SQL parser."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A statement. `tree` is None for those that `words` say whole (see `CONTROL`)."""

    text: str
    word: str
    """The first word, in capitals."""
    tree: exp.Expr | None = None
    upsert: bool = False
    names: tuple[str, ...] | None = None
    """The parameters' names, where they have some, in their order."""
    count: int = 0
    """How many parameters it has."""
    start: int = 0
    """Where the first word stands."""

    @property
    def pieces(self) -> list[str]:
        """The words of the text, without quotes."""
        body = _SPACES.sub(" ", self.text[self.start :])
        return [_unquoted(piece) for piece in _PIECE.findall(body)]

    def rest(self, word_count: int) -> str:
        """The text after so many words."""
        place = self.start
        for _ in range(word_count):
            place = _skip_space(self.text, place)
            word = _WORD.match(self.text, place)
            place = word.end() if word else place
        return self.text[place:]


def _unquoted(piece: str) -> str:
    if piece[0] == '"':
        return piece[1:-1].replace('""', '"')
    return piece.strip("`")


def parse(text: str) -> Parsed:
    """Read one statement.

    Raises `SqlSyntaxError` with the place, `NotSupportedError` for several statements,
    `TooLarge`.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise TooLarge(f"a statement has at most {TEXT_CHARACTERS_MAX} characters")
    if not text.isascii():
        _check_letters(text)
    start = _skip_space(text, 0)
    found = _WORD.match(text, start)
    word = found.group().upper() if found else ""
    is_tablespaces = is_about_a_tablespace(text, start)
    if word in CONTROL or is_tablespaces:
        if len(text) > _CONTROL_CHARACTERS_MAX and word != "EXPLAIN":
            raise TooLarge(f"this statement may have at most {_CONTROL_CHARACTERS_MAX} characters")
        return Parsed(text, TABLESPACE if is_tablespaces else word, start=start)
    shown = text
    if word in _UPSERTS:
        shown = text[:start] + _UPSERTS[word] + text[start + len(word) :]
    try:
        tree = parse_tree(shown)
    except SqlSyntaxError:
        _check_word(word, start)
        raise
    if isinstance(tree, exp.Condition | exp.Alias | exp.Tuple) and not isinstance(tree, exp.Query):
        _check_word(word, start)
        raise SqlSyntaxError("this is no statement", place=start, hint="SELECT it")
    if len(text) > NAME_CHARACTERS_MAX or "\0" in text:
        _check_names(text, tree)
    if len(text) > LONG_CHARACTERS:
        for part in (tree, tree.args.get("expression")):
            if isinstance(part, exp.Expr):
                mark_long(part)
    names, count = _number(tree)
    return Parsed(text, word, tree, word in _UPSERTS, names, count, start)


def _check_letters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SqlSyntaxError("half a letter, which is no text", place=error.start) from None


def end_of(tree: exp.Expr) -> int:
    """Where the last word of a statement ends in its text; a comment may follow, or `;`."""
    end: int = tree.meta[_END]
    return end


def is_long(tree: exp.Expr) -> bool:
    """Whether a query has a long text, so that preparing it would block the loop for long."""
    return _LONG in tree.meta


def mark_long(tree: exp.Expr) -> None:
    """Mark a query that is built from parts of a long text, or from many values (`is_long`)."""
    tree.meta[_LONG] = True


def _check_names(text: str, tree: exp.Expr) -> None:
    """Raise `ProgrammingError` for a name that is too long, or no name for people."""
    # A quoted name may contain any character, so the names themselves must be checked then.
    if not any(mark in text for mark in '\0"`') and not _has_long_name(text):
        return
    for node in tree.find_all(exp.Identifier, exp.Anonymous):
        if len(node.name) > NAME_CHARACTERS_MAX or "\0" in node.name:
            raise ProgrammingError(
                f"a name has 1 to {NAME_CHARACTERS_MAX} characters, none of which is NUL",
                place=place_of(node),
            )


def _has_long_name(text: str) -> bool:
    # In pieces: no other thread runs during a search.
    for start in range(0, len(text), _SEARCHED_AT_ONCE):
        end = start + _SEARCHED_AT_ONCE + NAME_CHARACTERS_MAX
        if _LONG_NAME.search(text, start, end) is not None:
            return True
    return False


def parse_tree(text: str) -> exp.Expr:
    """The tree of one statement. Raises as `parse`."""
    # The traceback of an error raised by the tokenizer or parser would keep all tokens alive.
    tokens, failure = _tokens(text)
    trees: list[exp.Expr] = []
    end = 0
    if tokens is not None:
        try:
            trees = [tree for tree in _DIALECT.parser().parse(tokens, text) if tree is not None]
            if len(text) > DEPTH_MAX and _is_too_deep(trees):
                failure = _nested()
        except ParseError as error:
            failure = _syntax_error(text, error)
            # The error and a frame of the parser hold each other, and the frame holds the tokens.
            traceback.clear_frames(error.__traceback__)
        except TokenError:
            failure = _unterminated()
        except RecursionError:
            failure = _nested()
        last = next((one for one in reversed(tokens) if one.token_type != _SEMICOLON), None)
        end = last.end + 1 if last is not None else 0
        _forget(tokens)
    if failure is not None:
        try:
            raise failure
        finally:
            # The error and this frame would keep each other until a collection.
            del failure, trees
    trees = [tree for tree in trees if not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise SqlSyntaxError("there is no statement")
    if len(trees) > 1:
        raise NotSupportedError("several statements in one text", hint="execute them one by one")
    trees[0].meta[_END] = end
    return trees[0]


def _tokens(text: str) -> tuple[list[Token] | None, DatabaseError | None]:
    """The tokens of a text, or why it need not be parsed."""
    try:
        tokens = None if is_hopeless(text) else _DIALECT.tokenize(text)
    except TokenError:
        return None, _unterminated()
    if tokens is None or has_too_many_words(tokens):
        _forget(tokens)
        return None, TooLarge(
            f"a query may have at most {WORDS_MAX} tokens, not counting constants in lists, "
            f"and an INSERT {INSERT_WORDS_MAX}",
            hint="pass values as parameters, or join a table that has them",
        )
    if nests_too_deeply(tokens, DEPTH_MAX):
        _forget(tokens)
        return None, _nested()
    return tokens, None


def _forget(tokens: list[Token] | None) -> None:
    """Free tokens some at a time: no other thread runs while objects are freed."""
    while tokens:
        del tokens[-_FREED_AT_ONCE:]


def _nested() -> TooLarge:
    return TooLarge("the statement is nested too deeply")


def _unterminated() -> SqlSyntaxError:
    return SqlSyntaxError("unterminated quote or comment")


def _is_too_deep(trees: Sequence[exp.Expr]) -> bool:
    """Whether the query engine would refuse the nesting; asked before any other step."""
    level = trees
    for _ in range(DEPTH_MAX):
        level = [child for node in level for child in node.iter_expressions()]
        if not level:
            return False
    return True


def parse_expression(text: str) -> exp.Expr:
    """The tree of an expression that a definition keeps as text."""
    tree = parse_tree(f"SELECT {text}")
    found: exp.Expr = tree.expressions[0]
    return found


def constants_of(text: str) -> list[exp.Expr]:
    """The constants of a list that was kept as one piece of text. Raises `TooLarge`."""
    found: list[exp.Expr] = parse_expression(f"[{text}]").expressions
    return found


def expression_text(tree: exp.Expr) -> str:
    """An expression as a definition keeps it."""
    return _DIALECT.generate(tree, comments=False, unsupported_level=ErrorLevel.IGNORE)


def bind(parsed: Parsed, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a statement's parameters, in order. Raises `ParametersMismatch`."""
    names = parsed.names
    if type(parameters) is tuple and names is None and len(parameters) == parsed.count:
        return parameters
    if names is not None:
        if not isinstance(parameters, Mapping):
            raise ParametersMismatch(
                f"the parameters have names: {', '.join(dict.fromkeys(names))}"
            )
        missing = [name for name in names if name not in parameters]
        if missing:
            raise ParametersMismatch(f"no value is given for :{missing[0]}")
        return tuple([parameters[name] for name in names])
    if isinstance(parameters, Mapping):
        if parsed.count or parameters:
            raise ParametersMismatch("the parameters are '?': give them as a sequence")
        return ()
    if isinstance(parameters, str | bytes | Set) or not isinstance(parameters, Collection):
        kind = type(parameters).__name__
        raise ParametersMismatch(f"the parameters are a {kind}", hint="give a list or a tuple")
    if len(parameters) != parsed.count:
        raise ParametersMismatch(
            f"{len(parameters)} parameters are given, the statement has {parsed.count}"
        )
    return tuple(parameters)


def check_parts(
    tree: exp.Expr, known: frozenset[str], hints: Mapping[str, str] | None = None
) -> None:
    """Raise `NotSupportedError` if a statement has a part that would be left out."""
    for part, value in tree.args.items():
        if value and part not in known:
            word = part.rstrip("_").replace("_", " ").upper()
            raise NotSupportedError(
                f"{word} in {tree.key.upper()}",
                hint=(hints or {}).get(part, ""),
                place=place_of(value if isinstance(value, exp.Expr) else tree),
            )


def check_no_schema(node: exp.Expr) -> None:
    """Raise `NotSupportedError` for the name of a table that says in which tablespace it is."""
    schema = node.args.get("catalog") or node.args.get("db")
    if schema:
        raise NotSupportedError(
            "a name with a schema", hint="connect to that tablespace", place=place_of(schema)
        )


def place_of(node: exp.Expr | None) -> int | None:
    """Where in the text a node stands, if it knows."""
    if node is None:
        return None
    for part in node.walk(bfs=False):
        start = part.meta.get("start")
        if isinstance(start, int):
            return start
    return None


def _check_word(word: str, start: int) -> None:
    """Raise `SqlSyntaxError` if no statement begins with a word."""
    if word and word not in _FIRST and word not in CONTROL and word not in _UPSERTS:
        near = difflib.get_close_matches(word, [*_FIRST, *CONTROL], 1)
        hint = f"is it {near[0]}?" if near else ""
        raise SqlSyntaxError(f"there is no statement {word}", place=start, hint=hint) from None


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _number(tree: exp.Expr) -> tuple[tuple[str, ...] | None, int]:
    """Give each parameter its number as its name; answers their own names and how many."""
    marks = list(tree.find_all(exp.Placeholder))
    if not marks:
        return None, 0
    if len(marks) > PARAMETERS_MAX:
        raise TooLarge(
            f"a statement has at most {PARAMETERS_MAX} parameters",
            hint="executemany takes any number of rows; join a list with a table of its values",
        )
    questions = [node for node in marks if not node.args.get("this")]
    numbered = [node for node in marks if node.name.isdigit()]
    if questions and len(questions) == len(marks):
        questions.sort(key=lambda node: node.meta.get("start", 0))
        for number, node in enumerate(questions, 1):
            node.set("this", str(number))
        return None, len(questions)
    if numbered and len(numbered) == len(marks):
        return None, max(int(node.name) for node in numbered)
    if questions or numbered:
        raise ParametersMismatch("parameters are '?' or have names, not both in one statement")
    names = tuple(dict.fromkeys(node.name for node in marks))
    for node in marks:
        node.set("this", str(names.index(node.name) + 1))
    return names, len(names)


def _syntax_error(text: str, error: ParseError) -> SqlSyntaxError:
    found = error.errors[0] if error.errors else {}
    line, column, token = found.get("line"), found.get("col"), found.get("highlight") or ""
    place = None
    if isinstance(line, int) and isinstance(column, int):
        before = text.splitlines(keepends=True)[: max(line - 1, 0)]
        place = max(sum(map(len, before)) + column - len(token), 0)
    said = found.get("description") or "this is no statement"
    near = f" near {token[:40]!r}" if token else ""
    hint = ""
    if "SENTINEL" in said or place is None or place + len(token) >= len(text.rstrip()):
        said, hint = "the statement is not complete", "or its last word has no place there"
    elif said.startswith(("Invalid expression", "this is not understood", "Required keyword")):
        said = "this cannot stand here"
    return SqlSyntaxError(f"{said}{near}", place=place, hint=hint)
