"""Tasks that are as the one before them are sent short, and are the same tasks."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.applying import TaskChanged, TasksCame
from broker.batching import EncodedSubmit, encode_specs, parts_of
from broker.commands import Begin, Parent, Refusal, Spec, Submit, decode_items, decode_spec, encode
from broker.errors import InvalidTask
from broker.task import PAYLOAD_BYTES_MAX, Status
from tests.broker.machine.driving import START_MS, Driver

PAYLOADS = (b"", b"x", b"y" * 256, b"z" * 257, b"\x00" * 70_000)
KINDS = (
    Spec("mow"),
    Spec("mow", priority=256),
    Spec("mow", "green"),
    Spec("plough", retention_ms=5, fixed=True, resources=("tractor",)),
    Spec("mow", due_ms=START_MS + 5_000),
    Spec("mow", deadline_ms=START_MS + 5_000),
    Spec("mow", slot="field"),
    Spec("mow", unique_key="once"),
    Spec("mow", parents=(Parent(index=0),)),
    Spec("mow", codepool="nowhere"),
    Spec("mow", payload_object="elsewhere"),
    Spec("rollout:step"),
)
SPECS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(PAYLOADS), st.integers(1, 4)),
    min_size=1,
    max_size=8,
)


def _short(driver: Driver, specs: list[Spec], transaction: int = 0, atomic: bool = False) -> object:
    raw = [msgspec.Raw(one) for one in encode_specs(specs)]
    command = encode(EncodedSubmit(raw, driver.now_ms, transaction, atomic))
    return decode_items(driver.send(command))


@given(SPECS, st.booleans(), st.booleans())
def test_a_batch_in_short_is_the_same_batch(
    drawn: list[tuple[Spec, bytes, int]], in_transaction: bool, atomic: bool
) -> None:
    specs = [
        msgspec.structs.replace(kind, payload=payload)
        for kind, payload, times in drawn
        for _ in range(times)
    ]
    short, whole = Driver(), Driver()
    transactions = []
    for driver in (short, whole):
        driver.submit(Spec("first"))
        transactions.append(
            driver.one(Begin(driver.now_ms + 60_000, driver.now_ms)) if in_transaction else 0
        )
    told = _short(short, specs, transactions[0], atomic)
    assert told == whole.submit(*specs, transaction=transactions[1], atomic=atomic)
    assert short.all() == whole.all()
    assert _heard(short) == _heard(whole)


def _heard(driver: Driver) -> list[tuple[int, Status | None, Status | None, str, int]]:
    """All that was told of tasks, one by one."""
    heard = []
    for change in driver.changes:
        if isinstance(change, TaskChanged):
            task = change.task
            heard.append((task.id, change.before, change.after, task.type, task.priority))
    return heard


def test_only_what_differs_is_sent() -> None:
    specs = [Spec("mow", payload=b"%d" % number) for number in range(100)]
    encoded = encode_specs(specs)
    assert [decode_spec(encoded[0])] == specs[:1]
    assert encoded[1:] == [encode(spec.payload) for spec in specs[1:]]


def test_another_kind_begins_anew() -> None:
    specs = [Spec("mow"), Spec("mow", priority=1), Spec("mow", priority=1), Spec("mow")]
    lengths = [len(one) for one in encode_specs(specs)]
    assert lengths[2] == len(encode(b"")) < min(lengths[0], lengths[1], lengths[3])


def test_a_payload_that_is_none_is_refused_wherever_it_stands() -> None:
    for wrong in (None, "text", b"x" * (PAYLOAD_BYTES_MAX + 1)):
        with pytest.raises(InvalidTask):
            encode_specs([Spec("mow"), Spec("mow", payload=wrong)])  # type: ignore[arg-type]


def test_the_first_of_a_batch_cannot_be_as_the_one_before_it() -> None:
    driver = Driver()
    refused, taken = driver.items(Submit([b"x", Spec("mow")], driver.now_ms))
    assert isinstance(refused, Refusal) and refused.code == "invalid_task"
    assert taken == 1


def test_a_part_of_a_batch_begins_with_a_whole_task() -> None:
    specs = [Spec("mow", payload=bytes((number % 256,)) * 900) for number in range(2_500)]
    parts = parts_of(encode_specs(specs))
    assert len(parts) == 3
    driver = Driver()
    for part in parts:
        driver.send(encode(EncodedSubmit([msgspec.Raw(one) for one in part], driver.now_ms)))
    whole = Driver()
    for start in range(0, 2_500, 500):
        whole.submit(*specs[start : start + 500])
    assert driver.all() == whole.all()


def test_who_listens_hears_of_alike_tasks_at_once_and_in_their_place() -> None:
    driver = Driver()
    kinds = [Spec("mow")] * 3 + [Spec("plough")] + [Spec("mow")] * 2
    assert _short(driver, kinds) == [1, 2, 3, 4, 5, 6]
    told = [one for one in driver.told if isinstance(one, TasksCame)]
    assert [[*one.ids] for one in told] == [[2, 3], [6]]
    ids = [heard[0] for heard in _heard(driver)]
    assert all(one < another for one, another in pairwise(ids))
