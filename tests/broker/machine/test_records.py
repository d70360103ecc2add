"""Keys are ordered as what they name; commands and tasks come back from bytes as they were."""

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import keys
from broker.commands import (
    UNKNOWN_COMMAND,
    Assign,
    Assigned,
    Assignment,
    Completion,
    Ended,
    Finish,
    Outcome,
    Parent,
    Refusal,
    Spec,
    Submit,
    checked,
    decode_command,
    decode_items,
    decode_one,
    encode,
)
from broker.errors import (
    BrokerError,
    CommandUnknown,
    InvalidTask,
    NotLeader,
    SlotBusy,
    StoreClosed,
    error_of,
)
from broker.task import EVENTS_MAX, EventKind, Status, Task, decode_task, note

IDS = st.integers(0, keys.ID_MAX)
TEXTS = st.text(max_size=6)


@given(IDS, IDS)
def test_keys_of_numbers_are_ordered_as_the_numbers(one: int, other: int) -> None:
    first, second = keys.numbered(keys.ACTIVE, one), keys.numbered(keys.ACTIVE, other)
    assert (first < second) == (one < other)
    assert keys.number_of(first) == one
    assert keys.pair_of(keys.paired(keys.EDGE, one, other)) == (one, other)


@given(TEXTS, TEXTS, TEXTS)
def test_settings_of_one_kind_are_a_range_of_keys(kind: str, name: str, other: str) -> None:
    key = keys.setting_key(kind, name)
    assert keys.split_setting(key) == (kind, name)
    prefix = keys.setting_prefix(kind)
    assert prefix <= key < keys.end_of(prefix)
    stranger = keys.setting_key(other, name)
    assert (prefix <= stranger < keys.end_of(prefix)) == (other == kind)


def test_no_two_kinds_of_rows_share_a_letter() -> None:
    letters = [value for name, value in vars(keys).items() if name.isupper() and len(name) > 2]
    letters = [letter for letter in letters if isinstance(letter, bytes)]
    assert len(letters) == len(set(letters)) == 23
    assert all(len(letter) == 1 and letter > b"\0" for letter in letters)


@given(st.lists(IDS, max_size=5))
def test_ids_come_back_from_a_row(ids: list[int]) -> None:
    assert keys.unpack_ids(keys.pack_ids(ids)) == ids


def test_a_command_comes_back_from_the_log() -> None:
    commands = [
        Submit([Spec("a", parents=(Parent(3), Parent(index=0))), Spec("b")], 5, atomic=True),
        Assign([Assignment("w", 1, [Assigned(7, 2, ("db", "net"))])], 6),
        Finish([Completion("w", 1, [Ended(7, 1, Outcome.FAILED, error="no")])], 7, 99),
    ]
    for command in commands:
        assert decode_command(encode(command)) == command


@pytest.mark.parametrize(
    "spec",
    [
        Spec(""),
        Spec("a" * 201),
        Spec("a\ud800"),
        Spec("a", due_ms=-1),
        Spec("a", due_ms=2**70),
        Spec("a", priority=2**40),
        Spec("a", payload=bytes(2**20 + 1)),
        Spec("a", resources=("",)),
        Spec("a", attempts_max="3"),  # type: ignore[arg-type]
    ],
)
def test_a_task_that_no_command_can_carry_is_told_before(spec: Spec) -> None:
    with pytest.raises(InvalidTask):
        checked(spec)
    assert checked(Spec("a")).type == "a"


def test_numbers_and_names_out_of_bounds_are_no_command() -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_command(encode(Submit([Spec("a")], 2**62)))
    with pytest.raises(msgspec.MsgspecError):
        decode_command(encode(Submit([Spec("a")] * 1_001, 1)))


def test_a_task_keeps_its_first_event_and_the_newest_ones() -> None:
    task = Task(1, "acme", "send", Status.WAITING)
    for number in range(EVENTS_MAX + 10):
        note(task, number, EventKind.ASSIGNED, "w", "x" * 300)
    found = decode_task(encode(task))
    assert found == task and len(found.events) == EVENTS_MAX
    assert [event[0] for event in found.events[:2]] == [0, 11]
    assert all(len(event[4]) == 200 for event in found.events)


def test_a_shorter_record_of_an_older_program_is_read() -> None:
    found = decode_task(msgspec.msgpack.encode([7, "acme", "send", 0]))
    assert found == Task(7, "acme", "send", Status.WAITING)


def test_a_refusal_is_the_error_of_its_code() -> None:
    refusal = Refusal("slot_busy", "slot a is held by task 3", 3)
    assert decode_one(encode(refusal)) == refusal
    error = refusal.error
    assert isinstance(error, SlotBusy) and error.task_id == 3 and error.retryable
    assert type(error_of("from a newer program", "what")) is BrokerError
    with pytest.raises(CommandUnknown):
        decode_items(UNKNOWN_COMMAND)


def test_errors_have_codes_of_their_own_and_can_be_pickled() -> None:
    def kinds(kind: type[BrokerError]) -> list[type[BrokerError]]:
        return [kind, *[one for child in kind.__subclasses__() for one in kinds(child)]]

    # A wire has kinds of its own for what never leaves it; so has the program that closed a store.
    every = [kind for kind in kinds(BrokerError) if kind.__module__ == "broker.errors"]
    codes = [kind.code for kind in every if kind is not StoreClosed]
    assert type(error_of(StoreClosed.code, "the store is closed")) is NotLeader
    assert len(codes) == len(set(codes))
    assert all(kind.remedy or kind.__subclasses__() for kind in kinds(BrokerError))
    copy = pickle.loads(pickle.dumps(SlotBusy("held", task_id=4)))
    assert copy.task_id == 4 and str(copy) == str(SlotBusy("held"))
