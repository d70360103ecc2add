"""The state machine: pure, total, and told of rather than telling."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.log.position import Position
from engine.state.memory import MemoryState
from herd.commands import (
    Check,
    Command,
    Erase,
    Write,
    decode_command,
    encode_command,
    erased,
    erased_last,
)
from herd.keys import ERASE, catalog_key, prefix
from herd.machine import DONE, UNKNOWN, HerdMachine
from herd.rows import stamp

BYTES = st.binary(max_size=6)
KEYS = st.binary(min_size=1, max_size=3).map(lambda rest: b"\x02" + rest)
CHANGES = st.lists(st.tuples(KEYS, st.none() | BYTES), max_size=5)
COMMANDS = st.lists(
    st.one_of(
        st.builds(Write, CHANGES, CHANGES, CHANGES),
        st.builds(Erase, st.integers(0, 3), st.integers(1, 4), st.integers(0, 1)),
        st.builds(Check, st.integers(0, 9)),
        st.binary(max_size=12),
    ),
    max_size=12,
)


def dump(state: MemoryState) -> list[tuple[bytes, bytes]]:
    """All rows."""
    return state.scan(b"\x01", None, 10_000)


def encoded(command: Command | bytes) -> bytes:
    """As it stands in the log."""
    return command if isinstance(command, bytes) else encode_command(command)


@given(COMMANDS)
def test_the_same_commands_make_the_same_rows_and_answers(commands: list[Any]) -> None:
    runs = []
    for watched in (False, True):
        state, machine = MemoryState(), HerdMachine()
        told: list[Command] = []
        if watched:
            machine.watcher = lambda position, command: told.append(command)  # noqa: B023
        answers = [
            machine.apply(state, encoded(command), Position(1, number))
            for number, command in enumerate(commands)
        ]
        runs.append((dump(state), answers))
        known = [one for one, answer in zip(commands, answers, strict=True) if answer != UNKNOWN]
        assert len(told) == (len(known) if watched else 0)
    assert runs[0] == runs[1]


@given(CHANGES, CHANGES, CHANGES)
def test_a_write_comes_back_from_the_log(rows: Any, plain: Any, before: Any) -> None:
    found = decode_command(encode_command(Write(rows, plain, before)))
    assert isinstance(found, Write)
    assert [list(one) for one in (found.rows, found.plain, found.before)] == [rows, plain, before]


@given(st.binary(max_size=40))
def test_bytes_that_are_no_command_change_nothing(command: bytes) -> None:
    state, machine = MemoryState(), HerdMachine()
    told: list[Command] = []
    machine.watcher = lambda position, found: told.append(found)
    if machine.apply(state, command, Position(1, 1)) == UNKNOWN:
        assert dump(state) == [] and told == []


def test_rows_carry_where_they_were_changed_and_plain_keys_do_not() -> None:
    state, machine = MemoryState(), HerdMachine()
    write = Write([(b"\x02row", b"one"), (b"\x02gone", None)], [(b"\x02entry", b"two")])
    assert machine.apply(state, encode_command(write), Position(3, 4)) == DONE
    assert dump(state) == [(b"\x02entry", b"two"), (b"\x02row", stamp(Position(3, 4)) + b"one")]


def test_a_store_is_erased_in_steps_and_its_neighbours_stay() -> None:
    state, machine = MemoryState(), HerdMachine()
    plain = [
        (prefix(store, index) + b"k%d" % n, b"")
        for store in (4, 5, 6)
        for index in (0, 1)
        for n in range(3)
    ]
    mark = (catalog_key(ERASE, 5), b"")
    machine.apply(state, encode_command(Write([], [*plain, mark])), Position(1, 1))
    answers, above = [], b""
    for step in (2, 3, 4):
        command = encode_command(Erase(5, 4, 0, above))
        answers.append(machine.apply(state, command, Position(1, step)))
        above = erased_last(answers[-1])
    assert answers == [erased(4, prefix(5, 1) + b"k0"), erased(2, prefix(5, 1) + b"k2"), b"0 "]
    assert [row for row in dump(state) if row[0][:1] == b"\x02"] == sorted(
        (key, b"") for key, _ in plain if not key.startswith(prefix(5)[:5])
    )
    assert state.get(catalog_key(ERASE, 5)) is None


def test_a_mark_stays_as_long_as_there_may_be_rows() -> None:
    state, machine = MemoryState(), HerdMachine()
    plain = [(prefix(5) + b"k%d" % n, b"") for n in range(4)]
    mark = catalog_key(ERASE, 5)
    machine.apply(state, encode_command(Write([], [*plain, (mark, b"")])), Position(1, 1))
    machine.apply(state, encode_command(Erase(5, 4)), Position(1, 2))
    assert state.get(mark) is not None
    machine.apply(state, encode_command(Erase(5, 4)), Position(1, 3))
    assert state.get(mark) is None
