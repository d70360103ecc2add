"""Two processes at once on one folder: the first runs the tablespaces, the other one reaches them.

Each test starts real processes; what they say comes over their pipes, line by line.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import herd
import herdbook
from herd.connection import Connection
from herd.errors import Error, SessionLost, TransactionEnded
from herd.types import BIGINT

OWNER = """
import sys, herdbook
with herdbook.open(sys.argv[1]) as book:
    with book.sql(autocommit=True) as connection:
        connection.execute("CREATE TABLE cow (id INT PRIMARY KEY, n INT)")
        connection.execute("INSERT INTO cow VALUES (1, 0), (2, 0)")
        print("ready", flush=True)
        for line in sys.stdin:
            for row in connection.execute(line):
                print(*row, flush=True)
"""


class Child:
    """A process that runs a program on a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        """What it says to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        """The next line that it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Let it end by itself."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=60)


@contextmanager
def owner(folder: Path) -> Iterator[Child]:
    """A process that runs a folder's tablespaces."""
    child = Child(OWNER, folder)
    try:
        assert child.hear() == "ready"
        yield child
    finally:
        if child.process.poll() is None:
            child.kill()
        for pipe in (child.process.stdin, child.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


def test_a_second_process_has_the_same_tables_and_runs_them_when_the_first_has_ended(
    tmp_path: Path,
) -> None:
    with owner(tmp_path) as child, herdbook.open(tmp_path) as book:
        connection, table = book.sql(autocommit=True), book.herd.table("cow")
        assert connection.execute("UPDATE cow SET n = 5 WHERE id = ?", [1]).rowcount == 1
        assert child.ask("SELECT n FROM cow WHERE id = 1") == "5"
        assert connection.execute("SELECT id, n FROM cow ORDER BY id").fetchall() == [
            (1, 5),
            (2, 0),
        ]
        table.put({"id": 3, "n": 7})
        assert table.get(3) == {"id": 3, "n": 7} and len(list(table.scan())) == 3
        assert child.ask("SELECT sum(n) FROM cow") == "12"
        child.end()
        assert connection.execute("SELECT n FROM cow WHERE id = 1").fetchone() == (5,)
        assert connection.execute("UPDATE cow SET n = n + 1").rowcount == 3
        assert table.get(1) == {"id": 1, "n": 6}
        with book.sql() as another:
            assert another.execute("SELECT sum(n) FROM cow").fetchone() == (15,)
        connection.close()
        with pytest.raises(herd.NotSupportedError):
            herd.connect(tmp_path, follower=True)


def test_a_killed_owner_takes_open_transactions_with_it_and_nothing_else(tmp_path: Path) -> None:
    with owner(tmp_path) as child, herd.open_herd(tmp_path) as opened:
        committed, open_one = opened.connect(), opened.connect()
        committed.execute("UPDATE cow SET n = 10 WHERE id = 1")
        committed.commit()
        open_one.execute("UPDATE cow SET n = 20 WHERE id = 2")
        child.kill()
        with pytest.raises(SessionLost) as raised:
            open_one.execute("UPDATE cow SET n = 21 WHERE id = 1")
        assert raised.value.retryable and isinstance(raised.value, herd.OperationalError)
        with pytest.raises(TransactionEnded):
            open_one.execute("SELECT 1")
        open_one.rollback()
        assert open_one.execute("SELECT n FROM cow ORDER BY id").fetchall() == [(10,), (0,)]
        open_one.close()
        committed.close()


MEMBER = """
import sys, herd
from herd.errors import Error
done = 0
with herd.open_herd(sys.argv[1]) as opened:
    connection = opened.connect()
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(20):
            try:
                connection.execute("UPDATE cow SET n = n + 1 WHERE id = 1")
                connection.execute("UPDATE cow SET n = n - 1 WHERE id = 2")
                connection.commit()
                break
            except Error as error:
                if not error.retryable:
                    raise
                connection.rollback()
        done += 1
        print(done, flush=True)
    connection.close()
"""


def transfer(connection: Connection) -> None:
    """What a member does once."""
    for _ in range(20):
        try:
            connection.execute("UPDATE cow SET n = n + 1 WHERE id = 1")
            connection.execute("UPDATE cow SET n = n - 1 WHERE id = 2")
            connection.commit()
            return
        except Error as error:
            assert error.retryable, error
            connection.rollback()
    raise AssertionError("twenty tries were not enough")


def test_three_processes_go_on_when_each_owner_in_turn_is_killed(tmp_path: Path) -> None:
    with owner(tmp_path) as first, herd.open_herd(tmp_path) as opened:
        second = Child(MEMBER, tmp_path)
        try:
            assert second.hear() == "ready"
            with opened.connect() as connection:
                transfer(connection)
                assert second.ask("go") == "1"
                first.kill()
                assert second.ask("go") == "2"
                transfer(connection)
                second.kill()
                transfer(connection)
                rows = connection.execute("SELECT n FROM cow ORDER BY id").fetchall()
                assert rows == [(5,), (-5,)]
        finally:
            if second.process.poll() is None:
                second.kill()
            assert second.process.stdin is not None and second.process.stdout is not None
            second.process.stdin.close()
            second.process.stdout.close()


def test_a_forked_child_opens_the_folder_anew(tmp_path: Path) -> None:
    program = """
import os, sys, herd
from herd.errors import InterfaceError
with herd.open_herd(sys.argv[1]) as opened:
    connection = opened.connect(autocommit=True)
    connection.execute("CREATE TABLE cow (id INT PRIMARY KEY)")
    child = os.fork()
    if not child:
        try:
            connection.execute("SELECT * FROM cow")
        except InterfaceError:
            with herd.connect(sys.argv[1], autocommit=True) as own:
                own.execute("INSERT INTO cow VALUES (1)")
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), *connection.execute("SELECT id FROM cow").fetchone())
    connection.close()
"""
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said.stdout.split() == ["7", "1"]


def test_another_loop_of_the_same_process_reaches_the_tablespaces(tmp_path: Path) -> None:
    import asyncio

    async def other() -> int:
        async with herd.open_folder(tmp_path) as opened:
            table = await opened.table("cow")
            await table.put({"id": 1, "n": 1})
            with pytest.raises(Error, match="run by process"):
                await opened.tablespace()
            async with await herd.aio.connect(tmp_path) as connection:
                cursor = await connection.execute("SELECT n FROM cow WHERE id = ?", (1,))
                assert [row async for row in cursor] == [(1,)]
                assert (await (await connection.execute("TABLE cow")).fetch_arrow()).num_rows == 1
            return len([row async for row in table.scan()])

    with herd.open_herd(tmp_path) as opened:
        table = opened.create_table("cow", {"id": BIGINT, "n": BIGINT}, ["id"])
        assert asyncio.run(other()) == 1
        assert table.get(1) == {"id": 1, "n": 1}
