"""What a person sees while a command works, on a terminal, and what a script sees: nothing."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO

import pytest

from herdbook.cli.blob_store import say_error
from herdbook.cli.working import Working, aside


class Terminal(StringIO):
    """Standard error where a person looks; it tells when something is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if "importing" in text:
            self.shown.set()
        return count


@contextmanager
def looked_at() -> Iterator[Terminal]:
    """Somebody looks at standard error."""
    with pytest.MonkeyPatch.context() as patched:
        found = Terminal()
        patched.setattr(sys, "stderr", found)
        patched.setenv("TERM", "xterm")
        patched.setenv("COLUMNS", "80")
        yield found


def test_work_that_lasts_shows_what_it_is_and_how_much_is_done() -> None:
    with looked_at() as terminal, Working("importing", patience_s=0) as working:
        working.done(5_000)
        assert terminal.shown.wait(30)
        working.done(12_345)
    assert "12,345" in terminal.getvalue()
    # The line is taken away: what was there is erased.
    assert terminal.getvalue().endswith("\x1b[2K")


def test_quick_work_shows_nothing() -> None:
    with looked_at() as terminal:
        with Working("importing") as working:
            working.done(1)
        working.show()
    assert terminal.getvalue() == ""


def test_what_is_said_meanwhile_stays() -> None:
    said = "NoSuchObject: elsa.jpg does not exist"
    with looked_at() as terminal, Working("importing", patience_s=0):
        assert terminal.shown.wait(30)
        say_error(said)
    before, _, after = terminal.getvalue().partition(f"{said}\n")
    assert before.endswith("\x1b[2K")
    assert "importing" in after


def test_a_script_sees_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Working("importing", patience_s=0) as working:
        working.done(1)
        with aside():
            sys.stderr.write("said" + os.linesep)
    assert capsys.readouterr() == ("", "said\n")
