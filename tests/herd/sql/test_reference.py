"""The page about SQL says what is so: all its statements run, in the order in which they stand."""

import re
from pathlib import Path

import herd

_PAGE = Path(__file__).parents[3] / "docs" / "sql.md"
_BLOCK = re.compile(r"```sql\n(.*?)```", re.DOTALL)


def statements_of_the_page() -> list[str]:
    """Each ends with a semicolon at the end of its line."""
    blocks = _BLOCK.findall(_PAGE.read_text())
    return [piece.strip() for block in blocks for piece in re.split(r";\n", block) if piece.strip()]


def test_every_statement_of_the_page_about_sql_runs(tmp_path: Path) -> None:
    statements = statements_of_the_page()
    assert len(statements) > 40
    with herd.connect(tmp_path, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            try:
                cursor.execute(statement)
            except herd.Error as error:
                raise AssertionError(f"{statement}\n{error}") from error
            if cursor.description is not None:
                cursor.fetchall()
