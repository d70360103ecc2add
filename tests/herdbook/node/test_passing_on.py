"""Lines that are passed on to somebody who may not take them."""

import threading

from herdbook.node.passing_on import PassingOn


def test_who_has_lines_never_waits_for_who_takes_them_and_what_is_lost_is_counted() -> None:
    reached, goes_on = threading.Event(), threading.Event()
    written: list[str] = []

    def write(line: str) -> None:
        reached.set()
        assert goes_on.wait(30)
        written.append(line)

    with PassingOn(write, lines_max=3) as passing:
        passing.pass_on("first")
        assert reached.wait(30)
        for number in range(5):
            passing.pass_on(f"line {number}")
        assert not written
        goes_on.set()
    said = "2 lines more were lost: nobody took them"
    assert written == ["first", "line 0", "line 1", "line 2", said]


def test_a_line_that_cannot_be_written_keeps_no_other_from_it() -> None:
    written: list[str] = []

    def write(line: str) -> None:
        if line == "on a full disk":
            raise OSError(28, "No space left on device")
        written.append(line)

    with PassingOn(write) as passing:
        for line in ("one", "on a full disk", "two"):
            passing.pass_on(line)
    assert written == ["one", "two"]


def test_its_end_waits_not_for_ever_for_who_takes_nothing() -> None:
    goes_on, written = threading.Event(), list[str]()

    def write(line: str) -> None:
        goes_on.wait()
        written.append(line)

    with PassingOn(write) as passing:
        passing.pass_on("moo")
    assert not written
    goes_on.set()
