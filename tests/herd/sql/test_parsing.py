"""From text to trees: parameters, places, what is refused."""

import contextlib
import random

import pytest
from sqlglot import exp
from sqlglot.optimizer import annotate_types

from herd.errors import (
    NotSupportedError,
    ParametersMismatch,
    ProgrammingError,
    SqlSyntaxError,
    TooLarge,
)
from herd.sql import parsing
from herd.sql.long_lists import nests_too_deeply
from herd.sql.parsing import (
    TEXT_CHARACTERS_MAX,
    bind,
    expression_text,
    parse,
    parse_expression,
    place_of,
)


@pytest.mark.parametrize(
    ("text", "given", "bound"),
    [
        ("SELECT ?, ?", (1, "a"), (1, "a")),
        ("SELECT :a, :b, :a", {"a": 1, "b": 2}, (1, 2)),
        ("SELECT $2, $1", (1, 2), (1, 2)),
        ("SELECT $1, ''", (1,), (1,)),
        ("SELECT $1 AS a$2, $2", (1, 2), (1, 2)),
        ("SELECT 1", (), ()),
        ("SELECT 1", {}, ()),
        ("SELECT '?', \":a\", ?", (1,), (1,)),
    ],
)
def test_parameters_are_bound_in_their_order(
    text: str, given: object, bound: tuple[object, ...]
) -> None:
    assert bind(parse(text), given) == bound  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("SELECT ?", ()),
        ("SELECT ?", (1, 2)),
        ("SELECT 1", (1,)),
        ("SELECT ?", {"a": 1}),
        ("SELECT :a", (1,)),
        ("SELECT :a", {"b": 1}),
        ("SELECT 1", {"b": 1}),
        ("SELECT ?", "x"),
        ("SELECT ?", b"x"),
    ],
)
def test_other_parameters_than_the_statement_has_are_refused(text: str, given: object) -> None:
    parsed = parse(text)
    with pytest.raises(ParametersMismatch):
        bind(parsed, given)  # type: ignore[arg-type]


def test_two_ways_to_write_parameters_do_not_mix() -> None:
    with pytest.raises(ParametersMismatch):
        parse("SELECT ?, :a")


def test_a_parameter_knows_its_place_in_the_text() -> None:
    tree = parse("UPDATE t SET b = ? WHERE a = ?").tree
    assert tree is not None
    numbers = {node.name: place_of(node) for node in tree.find_all(type(tree.args["where"]))}
    assert list(numbers.values()) == [25]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("SELEC 1", "SELEC"),
        ("SELECT a b c FROM t", "c"),
        ("SELECT * FROM t WHERE", ""),
        ("UPDATE t SET a = 1 WHERE )", ")"),
        ("SELECT *\nFROM t\nWHER a = 1", "a"),
        ("INSERT INTO t VALUES (1", ""),
        ("ALTER TABLE t DROP COLUMN a CASCADE", "CASCADE"),
    ],
)
def test_what_is_no_sql_is_refused_with_its_place(text: str, at: str) -> None:
    with pytest.raises(SqlSyntaxError) as failed:
        parse(text)
    if at:
        assert failed.value.place is not None
        assert text[failed.value.place :].startswith(at)
    assert "\x1b" not in str(failed.value)
    assert "SENTINEL" not in str(failed.value)


@pytest.mark.parametrize("text", ["", "  ", ";", "-- nothing", "/* nothing */", "SELECT 'open"])
def test_a_text_without_a_statement_is_refused(text: str) -> None:
    with pytest.raises(SqlSyntaxError):
        parse(text)


def test_several_statements_are_refused() -> None:
    with pytest.raises(NotSupportedError):
        parse("SELECT 1; SELECT 2")
    assert parse("SELECT 1; -- the end").tree is not None


def test_a_text_that_is_too_long_or_too_deep_is_refused() -> None:
    with pytest.raises(TooLarge):
        parse("SELECT " + "1" * TEXT_CHARACTERS_MAX)
    with pytest.raises((TooLarge, SqlSyntaxError)):
        parse("SELECT " + "(" * 20_000 + "1" + ")" * 20_000)


@pytest.mark.parametrize(
    "text",
    [
        "a > 1 AND NOT (b IS NULL)",
        "UPPER(a) = 'X'",
        "CAST(a AS DOUBLE) / 2",
        "a LIKE 'x%'",
        "CASE WHEN a THEN 1 ELSE 2 END",
        "'it''s'",
        '"a b" + 1',
        "CURRENT_TIMESTAMP",
    ],
)
def test_an_expression_is_kept_as_text_and_read_again(text: str) -> None:
    once = expression_text(parse_expression(text))
    assert expression_text(parse_expression(once)) == once


@pytest.mark.parametrize(
    ("text", "word", "pieces"),
    [
        ("  /* x */ begin -- y", "BEGIN", ["begin"]),
        ('SHOW COLUMNS FROM "my table"', "SHOW", ["SHOW", "COLUMNS", "FROM", "my table"]),
        ("describe `a`;", "DESCRIBE", ["describe", "a"]),
    ],
)
def test_statements_of_the_session_are_words(text: str, word: str, pieces: list[str]) -> None:
    parsed = parse(text)
    assert (parsed.word, parsed.tree, parsed.pieces) == (word, None, pieces)


def test_keys_of_mysql_are_indexes_and_key_is_the_name_of_a_column_all_the_same() -> None:
    tree = parse("CREATE TABLE t (key TEXT PRIMARY KEY, index INT, KEY k (a), INDEX (a))").tree
    assert tree is not None
    kinds = [type(node).__name__ for node in tree.this.expressions]
    assert kinds == ["ColumnDef", "ColumnDef", "IndexColumnConstraint", "IndexColumnConstraint"]


def test_upsert_and_replace_are_inserts() -> None:
    for word in ("UPSERT", "replace"):
        parsed = parse(f"{word} INTO t VALUES (1)")
        assert parsed.upsert
        assert type(parsed.tree).__name__ == "Insert"


def test_a_table_is_read_as_of_a_checkpoint() -> None:
    text = "SELECT * FROM t AS OF CHECKPOINT 5 AS c JOIN u AS OF CHECKPOINT 'newest' ON c.a = u.a"
    tree = parse(text).tree
    assert tree is not None
    assert expression_text(tree) == text
    assert parse("SELECT * FROM t AS c").tree is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "1+" * 100_000 + "1",
        "SELECT " + "1-" * 100_000 + "1",
        "SELECT " + ",".join(f"{n} AS c{n}" for n in range(30_000)),
        "SELECT 1 WHERE " + " OR ".join(f"{n} = {n}" for n in range(20_000)),
        "INSERT INTO cow SELECT " + "1+" * 200_000 + "1",
    ],
)
def test_statements_with_too_many_tokens_are_refused_before_parsing(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing._DIALECT, "parser", lambda: pytest.fail("it was read"))
    with pytest.raises(TooLarge, match="a query may have at most 20000 tokens"):
        parse(text)


@pytest.mark.parametrize("piece", [";", "-- a comment\n", "/* a comment */", "$ ", "("])
def test_signs_and_comments_count_before_a_text_is_cut_into_tokens(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing._DIALECT, "tokenize", lambda _: pytest.fail("it was cut"))
    with pytest.raises(TooLarge, match="a query may have at most 20000 tokens"):
        parse("SELECT 1 " + piece * 30_000)


@pytest.mark.parametrize("text", ["SELECT ", "SHOW ", "EXPLAIN ", "INSERT INTO cow VALUES ", ""])
@pytest.mark.parametrize("piece", ["/* ", "/*", "-- ", "'", '"', "(", "/**/ /*", "$a$ "])
def test_unterminated_comments_are_scanned_only_once(text: str, piece: str) -> None:
    with contextlib.suppress(ProgrammingError, NotSupportedError, TooLarge):
        found = parse(text + piece * 100_000)
        assert found.pieces


def test_the_type_of_a_list_is_not_guessed_again_for_each_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(annotate_types, "annotate_types", lambda *_, **__: pytest.fail("guessed"))
    text = "SELECT a[1], a[-1][2], a[1 + 1], [1, 2][1], a[1:2]"
    tree = parse(text).tree
    assert tree is not None
    assert tree.sql(dialect="duckdb") == expression_text(tree) == text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 WHERE 1 IN (" + ", ".join(f"-{n}" for n in range(12_000)) + ")",
        "INSERT INTO cow VALUES " + ",".join(f"({n}, 'a b', NULL, TRUE)" for n in range(5_000)),
        "INSERT INTO cow VALUES " + ",".join(f"({n}, DATE '2024-01-01')" for n in range(5_000)),
    ],
)
def test_constants_in_lists_and_rows_do_not_count_as_tokens(text: str) -> None:
    assert parse(text).tree is not None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 3_000 + "1" + ")" * 3_000,
        "SELECT CAST(NULL AS INT" + "[]" * 3_000 + ")",
        "SELECT " + "1+" * 3_000 + "1",
        "SELECT " + "NOT " * 3_000 + "TRUE",
        "SELECT " + "CASE WHEN TRUE THEN " * 2_000 + "1" + " END" * 2_000,
        " UNION ALL ".join(["SELECT 1"] * 3_000),
    ],
)
def test_statements_nested_too_deeply_are_refused(text: str) -> None:
    with pytest.raises(TooLarge, match="nested too deeply"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT CAST(NULL AS INT" + "[]" * 3_000 + ")",
        "SELECT " + "1+" * 9_900 + "1",
        "SELECT " + "a AND " * 5_000 + "b",
        "SELECT a" + "[1]" * 3_000,
        "SELECT " + "(" * 3_000 + "1" + ")" * 3_000,
    ],
)
def test_statements_that_nest_too_deeply_are_refused_before_they_are_parsed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parser() -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(parsing._DIALECT, "parser", parser)
    with pytest.raises(TooLarge, match="nested too deeply"):
        parse(text)


def test_what_is_refused_before_it_is_parsed_would_have_been_refused_after() -> None:
    chance = random.Random(7)
    refused = 0
    for _ in range(3_000):
        text = f"SELECT {_expression(chance, 3)} FROM t"
        depth_max = chance.choice((4, 6, 9, 14))
        if nests_too_deeply(parsing._DIALECT.tokenize(text), depth_max):
            refused += 1
            tree = parse(text).tree
            assert tree is not None and _depth(tree) > depth_max, text
    assert refused > 300


def _expression(chance: random.Random, level: int) -> str:
    """Operators in rows, brackets, subscripts, calls and cases."""
    if not level or chance.random() < 0.2:
        return chance.choice(("a", "b", "1", "-1", "'x'", "NULL", "c[1][2]", "(NOT a)"))

    def inner() -> str:
        return _expression(chance, level - 1)

    draw = chance.randrange(9)
    if draw == 0:
        return f"({inner()})"
    if draw == 1:
        return f"CASE WHEN {inner()} THEN {inner()} WHEN {inner()} THEN {inner()} END"
    if draw == 2:
        return f"coalesce({inner()}, {inner()}, {inner()})"
    if draw == 3:
        return f"(a BETWEEN ({inner()}) AND ({inner()}))"
    signs = chance.choices((" + ", " - ", " * ", " / ", " = ", " < ", " AND ", " OR "), k=4)
    parts = [inner() for _ in range(chance.randint(2, 9))]
    return "".join(f"{part}{chance.choice(signs)}" for part in parts[:-1]) + parts[-1]


def _depth(tree: exp.Expr) -> int:
    depth, level = 0, [tree]
    while level := [child for node in level for child in node.iter_expressions()]:
        depth += 1
    return depth
