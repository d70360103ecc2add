"""`herdbook sql`: what scripts and people get, and how it ends."""

import csv
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import herd
from herd.connection import Connection
from herdbook.cli.main import app
from herdbook.cli.sql_console import Console
from herdbook.cli.sql_output import Form, Output
from herdbook.cli.sql_splitting import Piece
from herdbook.cli.sql_typing import Completion, one_line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("console")
    with herd.connect(path, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE cow (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(20) NOT NULL UNIQUE,"
            " milk DECIMAL(20, 4), facts JSON, photo BLOB, born DATE, CHECK (milk >= 0))"
        )
        connection.execute(
            "INSERT INTO cow (name, milk, facts, photo, born) VALUES "
            "('Elsa', 21.5, '{\"a\": [1,\n 2]}', ?, '2020-02-29'), "
            "('Resi', NULL, NULL, NULL, NULL)",
            [b"\x00\xff"],
        )
        connection.execute("CREATE TABLE calf (id INT PRIMARY KEY, cow INT REFERENCES cow (id))")
        connection.execute("CREATE VIEW milker AS SELECT id, name FROM cow WHERE milk > 0")
    # Who opens a folder that is open opens it at once.
    with herd.open_herd(path) as opened, opened.connect():
        yield path


def call(folder: Path, *arguments: str, typed: str | None = None) -> Result:
    environment = {"HERDBOOK_URL": "", "XDG_STATE_HOME": str(folder)}
    return CliRunner().invoke(app, ["sql", str(folder), *arguments], input=typed, env=environment)


def test_a_table_is_written_with_its_nulls_and_the_count(folder: Path) -> None:
    answer = call(folder, "-c", "SELECT id, name, milk FROM cow ORDER BY id")
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert lines[0].split() == ["id", "name", "milk"]
    assert lines[2].split() == ["1", "Elsa", "21.5000"]
    assert lines[3].split() == ["2", "Resi", "NULL"]
    assert lines[4] == "(2 rows)" and answer.stderr == ""


def test_json_is_one_object_a_row_with_exact_decimals(folder: Path) -> None:
    answer = call(folder, "--json", "-c", "SELECT * FROM cow ORDER BY id; SELECT 1 AS a, 2 AS a")
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    assert rows == [
        {
            "id": 1,
            "name": "Elsa",
            "milk": "21.5000",
            "facts": {"a": [1, 2]},
            "photo": "AP8=",
            "born": "2020-02-29",
        },
        {"id": 2, "name": "Resi", "milk": None, "facts": None, "photo": None, "born": None},
        {"a": 1, "a_2": 2},
    ]


def test_csv_tells_null_from_no_text(folder: Path) -> None:
    text = "SELECT 'a,\"b' AS x, '' AS y, NULL AS z, 'two\nlines' AS w"
    answer = call(folder, "--csv", "-c", text)
    assert answer.stdout == 'x,y,z,w\n"a,""b","",,"two\nlines"\n'
    assert list(csv.reader(io.StringIO(answer.stdout)))[1] == ['a,"b', "", "", "two\nlines"]


def test_an_error_shows_place_state_and_hint_and_ends_with_1(folder: Path) -> None:
    answer = call(folder, "-c", "SELECT id,\n   hoof FROM cow")
    assert answer.exit_code == 1 and answer.stdout == ""
    error, line, caret, *hints = answer.stderr.splitlines()
    assert error.startswith("ERROR 42703: ") and "hoof" in error
    assert line == "LINE 2:    hoof FROM cow"
    assert caret.index("^") == line.index("hoof")
    assert all(hint.startswith("HINT: ") for hint in hints)


def test_a_file_stops_at_its_first_error_and_names_the_line(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(
        "-- a script\nSELECT 'one' AS a;\n\nSELECT 1 +\n  FROM horse;\nSELECT 'three' AS b;\n"
    )
    answer = call(folder, "--csv", "-f", str(script))
    assert answer.exit_code == 1
    assert answer.stdout == "a\none\n"
    assert answer.stderr.startswith(f"{script}:5: ERROR 42")
    answer = call(folder, "--csv", "--keep-going", "-f", str(script))
    assert answer.exit_code == 1 and answer.stdout == "a\none\nb\nthree\n"


def test_standard_input_is_a_script_where_nobody_sits(folder: Path) -> None:
    answer = call(folder, "--csv", typed="SELECT 1 AS a;\nSELECT 2 AS b")
    assert (answer.exit_code, answer.stdout) == (0, "a\n1\nb\n2\n")
    answer = call(folder, "--csv", "-f", "-", typed="SELECT 3 AS c")
    assert (answer.exit_code, answer.stdout) == (0, "c\n3\n")


def test_one_transaction_is_taken_back_whole(folder: Path) -> None:
    insert = "INSERT INTO calf VALUES (50, NULL)"
    answer = call(folder, "-1", "-c", insert, "-c", "SELECT * FROM horse")
    assert answer.exit_code == 1
    count = "SELECT count(*) AS n FROM calf WHERE id = 50"
    assert call(folder, "--csv", "-c", count).stdout == "n\n0\n"
    assert call(folder, "-1", "-c", insert, "-c", "DELETE FROM calf WHERE id = 50").exit_code == 0


def test_the_commands_describe_what_there_is(folder: Path) -> None:
    described = call(folder, "-c", "\\d cow").stdout
    for words in ("AUTO_INCREMENT", "DECIMAL(20,4)", "cow_primary", "referred to by", "CHECK ("):
        assert words in described, described
    assert "foreign keys" in call(folder, "-c", "\\d calf").stdout
    assert "SELECT id, name" in call(folder, "-c", '\\d "Milker"').stdout
    both = call(folder, "-c", "\\d").stdout
    assert "cow" in both and "milker" in both
    assert "milker" not in call(folder, "-c", "\\dt").stdout
    assert "milker" in call(folder, "-c", "\\dv").stdout
    assert "cow_name_key" in call(folder, "-c", "\\di cow").stdout
    assert "default" in call(folder, "-c", "\\dn").stdout
    assert "\\timing" in call(folder, "-c", "\\?").stdout
    missing = call(folder, "-c", "\\d horse")
    assert missing.exit_code == 1 and "there is no table or view horse" in missing.stderr
    assert call(folder, "-c", "\\moo").exit_code == 1


def test_values_stand_one_a_line_on_demand(folder: Path) -> None:
    answer = call(folder, "-c", "\\x on", "-c", "SELECT id, milk FROM cow ORDER BY id")
    assert "id   | 1\nmilk | 21.5000\n" in answer.stdout
    assert "milk | NULL\n" in answer.stdout


def test_timing_says_how_long_it_took(folder: Path) -> None:
    assert " ms" in call(folder, "-c", "\\timing", "-c", "SELECT 1").stdout


def test_a_value_does_not_steer_the_terminal(folder: Path) -> None:
    answer = call(folder, "-c", "SELECT 'a' || chr(27) || '[2J' AS x, '[bold]b[/bold]' AS y")
    assert "\x1b" not in answer.stdout and "\\x1b[2J" in answer.stdout
    assert "[bold]b[/bold]" in answer.stdout
    wrong = call(folder, "-c", "SELECT * FROM \x1b[2J")
    assert "\x1b" not in wrong.stderr


def test_wide_values_are_not_cut_off_in_a_pipe(folder: Path) -> None:
    answer = call(folder, "-c", "SELECT repeat('x', 5000) AS x, repeat('y', 500) AS y")
    assert "x" * 5000 in answer.stdout and "y" * 500 in answer.stdout


def test_rows_come_from_csv_and_go_to_it(folder: Path, tmp_path: Path) -> None:
    given, taken = tmp_path / "given.csv", tmp_path / "taken.csv"
    given.write_text('id,name,milk,photo\n71,"Ann ""A""",1.5,AP8=\n72,Bea,,\n', encoding="utf-8")
    answer = call(folder, "-c", f"\\copy cow from {given}")
    assert (answer.exit_code, answer.stdout) == (0, "COPY 2\n"), answer.output
    query = "SELECT id, name, milk, photo FROM cow WHERE id > 70 ORDER BY id"
    assert call(folder, "-c", f"\\copy ({query}) to '{taken}'").stdout == "COPY 2\n"
    assert taken.read_text() == 'id,name,milk,photo\n71,"Ann ""A""",1.5000,AP8=\n72,Bea,,\n'
    assert call(folder, "-c", f"\\copy cow to {taken}").exit_code == 1
    again = call(folder, "-c", f"\\copy cow from {given}")
    assert again.exit_code == 1 and "23505" in again.stderr and "rows 1 to 2" in again.stderr
    call(folder, "-c", "DELETE FROM cow WHERE id > 70")


def test_a_csv_that_is_wrong_adds_nothing(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.csv"
    for text, words in (
        ("id,name\n80,a\n81,b,c\n", "row 2 has 3 fields"),
        ("id,hoof\n80,a\n", "hoof"),
        ("id,name\n80,a\n81,\n", "23502"),
        ('id,name\n80,"a\n', "not closed"),
        ("", "names of columns"),
        ("id,name,photo\n80,a,%%%\n", "wrong.csv"),
    ):
        file.write_text(text)
        answer = call(folder, "-c", f"\\copy cow from {file}")
        assert answer.exit_code == 1 and words in answer.stderr, answer.stderr
    assert call(folder, "-c", "\\copy cow from nowhere.csv").exit_code == 1
    count = call(folder, "--csv", "-c", "SELECT count(*) AS n FROM cow WHERE id >= 80").stdout
    assert count == "n\n0\n"


def test_the_inserts_of_a_dump_mean_what_they_say(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "dump.sql"
    script.write_text(
        "INSERT INTO cow (id, name, milk, born) VALUES (60, 'O''Neil', 1.50, '2020-01-31');\n"
        "insert into cow (id, name, milk, born) values (61,'b', -0, NULL);\n"
        "INSERT INTO cow (id, name) VALUES (62, 'a;b');\n"
        "INSERT INTO cow (id, name, milk) VALUES (63, 'c', -1);\n"
        "INSERT INTO cow (id, nmae) VALUES (64, 'd');\n"
    )
    answer = call(folder, "--csv", "--keep-going", "-f", str(script))
    assert (
        answer.stderr.startswith(f"{script}:4: ERROR 23514") and "5: ERROR 42703" in answer.stderr
    )
    assert "HINT: it has id, name" in answer.stderr and answer.stderr.count("^") == 1
    query = "SELECT id, name, milk, born FROM cow WHERE id >= 60 ORDER BY id"
    rows = call(folder, "--csv", "-c", query).stdout.splitlines()[1:]
    assert rows == ["60,O'Neil,1.5000,2020-01-31", "61,b,0.0000,", "62,a;b,,"]
    call(folder, "-c", "DELETE FROM cow WHERE id >= 60")


def test_without_a_store_it_says_so(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "nowhere"):
        answer = call(where, "-c", "SELECT 1")
        assert answer.exit_code == 2 and answer.stderr.startswith("StoreNotFound: ")
        assert list(tmp_path.iterdir()) == []
    made = call(tmp_path / "new", "--create", "--csv", "-c", "SELECT 1 AS a")
    assert (made.exit_code, made.stdout) == (0, "a\n1\n"), made.output
    wrong = call(tmp_path / "new", "--tablespace", "sales", "-c", "SELECT 1")
    assert wrong.exit_code == 1 and "there is no tablespace sales" in wrong.stderr


def test_calls_that_contradict_themselves_are_refused(folder: Path) -> None:
    assert call(folder, "--json", "--csv", "-c", "SELECT 1").exit_code == 2
    assert call(folder, "-1", "--keep-going", "-c", "SELECT 1").exit_code == 2


def test_a_reader_that_goes_away_ends_it_quietly(folder: Path) -> None:
    query = "SELECT * FROM range(300000)"
    command = [sys.executable, "-m", "herdbook", "sql", str(folder), "--csv", "-c", query]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


class Terminal:
    """A console on a terminal of its own, and what stands on its screen."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._main, other = pty.openpty()
        # What began it ignores interrupts, as a shell has its background jobs do.
        command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
        command += [sys.executable, "-m", "herdbook", "sql", str(folder)]
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "dumb", "COLUMNS": "90"}
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment
        )
        os.close(other)
        self._screen = ""

    def until(self, words: str) -> str:
        """What came before some words; they must come."""
        while words not in self._screen:
            shown = select.select([self._main], [], [], 60)[0]
            assert shown, f"no {words!r} after {self._screen!r}"
            self._screen += os.read(self._main, 65_536).decode()
        seen, _, self._screen = self._screen.partition(words)
        return seen

    def type(self, text: str, end: str = "\n") -> None:
        """Type a line, or the beginning of one."""
        os.write(self._main, text.encode() + end.encode())

    def interrupt_until(self, words: str) -> None:
        """Press Ctrl-C, again where nothing follows: one may come when the console is not asked."""
        for _ in range(20):
            self.process.send_signal(signal.SIGINT)
            while select.select([self._main], [], [], 3)[0]:
                self._screen += os.read(self._main, 65_536).decode()
                if words in self._screen:
                    return
        raise AssertionError(f"no {words!r} after {self._screen!r}")

    def close(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.wait()
        os.close(self._main)


def test_a_person_types_lines_and_sees_the_transaction_in_the_prompt(
    folder: Path, tmp_path: Path
) -> None:
    screen = Terminal(folder, tmp_path)
    try:
        screen.until("default=> ")
        screen.type("SELECT name")
        screen.until("default-> ")
        screen.type("FROM cow WHERE id = 1;")
        assert "Elsa" in screen.until("default=> ")
        screen.type("BEGIN;")
        screen.until("default*=> ")
        screen.type("SELECT 'half")
        screen.until("default*'> ")
        screen.type("a text';")
        assert "half" in screen.until("default*=> ")
        screen.type("SELECT * FROM horse;")
        assert "42P01" in screen.until("default*=> ")
        screen.type("SELECT milk FROM milke\t", end="")
        screen.until("milker")
        screen.type("WHERE false;")
        screen.until("default*=> ")
        screen.type("ROLLBACK;")
        screen.until("default=> ")
        screen.type("\\q")
        assert screen.process.wait(60) == 0
    finally:
        screen.close()
    history = (tmp_path / "herdbook" / "sql_history").read_text()
    assert "SELECT name FROM cow WHERE id = 1;" in history


def test_an_interrupt_ends_the_statement_and_not_the_console(folder: Path, tmp_path: Path) -> None:
    screen = Terminal(folder, tmp_path)
    try:
        screen.until("default=> ")
        screen.type("BEGIN;")
        screen.until("default*=> ")
        screen.type("SELECT 'be' || 'gun'; SELECT count(*) FROM range(10000000000000);")
        screen.until("begun")
        screen.interrupt_until("cancelled")
        screen.until("default*=> ")
        screen.type("SELECT 'alive';")
        screen.until("(1 row)")
        screen.until("default*=> ")
        screen.type("\x04", end="")
        assert screen.process.wait(60) == 0
    finally:
        screen.close()


def test_an_interrupt_ends_a_long_query_of_a_script_and_the_command_with_it(
    tmp_path: Path,
) -> None:
    arguments = [
        *("--create", "-c"),
        "SELECT 'be' || 'gun'; SELECT count(*) FROM range(10000000000000)",
    ]
    # What starts it in the background may have interrupts ignored.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program += "; from herdbook.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, "sql", str(tmp_path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "begun" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    try:
        said = process.communicate(timeout=15)[1]
    except subprocess.TimeoutExpired:
        # One that comes while something is disposed of may be lost: who waits sends another.
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        said = ""
    assert (process.returncode, said) == (130, "")


def test_an_interrupt_at_the_prompt_forgets_what_was_typed(folder: Path) -> None:
    typed: list[str | type[BaseException]] = [
        "SELECT 'half",
        KeyboardInterrupt,
        "SELECT 'whole' AS a;",
        EOFError,
    ]
    prompts: list[str] = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        said = typed.pop(0)
        if isinstance(said, str):
            return said
        raise said

    stream = io.StringIO()
    with herd.open_herd(folder) as opened:
        console = Console(
            lambda name: opened.connect(name, autocommit=True),
            "default",
            Output(stream, Form.TABLE),
            stream,
            opened.names,
        )
        console.interact(read_line, lambda text: None)
        console.connection.close()
    assert prompts == ["default=> ", "default'> ", "default=> ", "default=> "]
    assert "whole" in stream.getvalue() and "half" not in stream.getvalue()


def test_names_and_words_are_completed(folder: Path) -> None:
    stream = io.StringIO()
    with herd.open_herd(folder) as opened:

        def connect(name: str) -> Connection:
            return opened.connect(name, autocommit=True)

        console = Console(connect, "default", Output(stream, Form.TABLE), stream, opened.names)
        completion = Completion(console, connect)
        assert completion.words("milk") == ["milk", "milker"]
        assert completion.words("cow.MI") == ["cow.milk", "cow.milker"]
        assert completion.words("\\ti") == ["\\timing"]
        assert completion.words("sele") == ["select"] and completion.words("SELE") == ["SELECT"]
        console.run(Piece("CREATE TABLE zebra (id INT PRIMARY KEY)", 1))
        assert completion.words("zeb") == ["zebra"]
        console.run(Piece("DROP TABLE zebra", 1))
        assert [completion.complete("zeb", 0), completion.complete("bet", 0)] == [None, "between"]
        console.connection.close()
    assert one_line("SELECT 1,\n  2;") == ["SELECT 1, 2;"]
    assert one_line("SELECT 1 -- one\n, 2;") == ["SELECT 1 -- one", ", 2;"]
