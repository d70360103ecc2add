"""The judge of histories is judged: known ones, drawn ones, and every order tried one by one."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linearizability import Kind, Operation, Value, check


def read(client: str, called: float, returned: float, value: Value) -> Operation:
    return Operation(client, "k", Kind.READ, called, returned, value)


def write(client: str, called: float, returned: float, value: Value) -> Operation:
    return Operation(client, "k", Kind.WRITE, called, returned, value)


def swap(
    client: str, called: float, returned: float, expected: Value, value: Value, done: bool = True
) -> Operation:
    return Operation(client, "k", Kind.COMPARE_AND_SET, called, returned, value, expected, done)


ACCEPTED: dict[str, list[Operation]] = {
    "nothing at all": [],
    "one after the other": [write("a", 0, 1, "1"), read("b", 2, 3, "1")],
    "a read beside a write sees the old value": [write("a", 0, 3, "1"), read("b", 1, 2, None)],
    "a read beside a write sees the new value": [write("a", 0, 3, "1"), read("b", 1, 2, "1")],
    "a lost write that happened": [write("a", 0, math.inf, "1"), read("b", 5, 6, "1")],
    "a lost write that did not happen": [write("a", 0, math.inf, "1"), read("b", 5, 6, None)],
    "a lost write that happens late": [
        write("a", 0, math.inf, "1"),
        read("b", 5, 6, None),
        read("b", 7, 8, "1"),
    ],
    "two writes at once, seen in either order": [
        write("a", 0, 3, "1"),
        write("b", 0, 3, "2"),
        read("c", 4, 5, "1"),
    ],
    "one of two swaps at once wins": [
        swap("a", 0, 3, None, "1"),
        swap("b", 0, 3, None, "2", done=False),
        read("c", 4, 5, "1"),
    ],
    "an end and a beginning at one instant": [write("a", 0, 1, "1"), read("b", 1, 2, None)],
    "a write of what was there already, placed after another one": [
        write("a", 0, 5, None),
        write("b", 0, 5, "1"),
        swap("c", 6, 7, "1", "2", done=False),
    ],
    "a refusal that a lost swap explains": [
        swap("a", 0, math.inf, None, "1"),
        swap("b", 0, 1, None, "2", done=False),
    ],
    "a refusal that a lost write explains": [
        write("a", 0, 1, "1"),
        write("b", 2, math.inf, "2"),
        swap("c", 3, 4, "1", "3", done=False),
        read("c", 5, 6, "2"),
    ],
}

REJECTED: dict[str, list[Operation]] = {
    "a stale read": [write("a", 0, 1, "1"), write("a", 2, 3, "2"), read("b", 4, 5, "1")],
    "a lost acknowledged write": [write("a", 0, 1, "1"), read("b", 2, 3, None)],
    "a read from the future": [read("b", 0, 1, "1"), write("a", 2, 3, "1")],
    "a value that nobody wrote": [write("a", 0, 1, "1"), read("b", 2, 3, "7")],
    "two reads that see a write come and go": [
        write("a", 0, 9, "1"),
        read("b", 1, 2, "1"),
        read("b", 3, 4, None),
    ],
    "a write applied twice": [
        write("a", 0, 1, "1"),
        write("b", 2, 3, "2"),
        read("c", 4, 5, "2"),
        read("c", 6, 7, "1"),
    ],
    "a lost write applied twice": [
        write("a", 0, math.inf, "1"),
        read("c", 1, 2, "1"),
        write("b", 3, 4, "2"),
        read("c", 5, 6, "1"),
    ],
    "two swaps of one value": [swap("a", 0, 3, None, "1"), swap("b", 0, 3, None, "2")],
    "a swap that was refused for nothing": [
        write("a", 0, 1, "1"),
        swap("b", 2, 3, "1", "2", done=False),
    ],
    "a write of what was there already, taken twice": [
        write("a", 0, 1, "1"),
        write("b", 2, 3, "1"),
        write("c", 4, 5, "2"),
        read("d", 6, 7, "1"),
    ],
    "two readers that disagree on the order": [
        write("a", 0, 9, "1"),
        write("b", 0, 9, "2"),
        read("c", 1, 2, "1"),
        read("c", 3, 4, "2"),
        read("d", 5, 6, "1"),
    ],
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_history_that_some_order_explains_is_accepted(name: str) -> None:
    assert check(ACCEPTED[name]) is None


@pytest.mark.parametrize("name", REJECTED)
def test_a_history_that_no_order_explains_is_rejected(name: str) -> None:
    assert check(REJECTED[name]) is not None


def test_registers_are_judged_one_by_one() -> None:
    good = [write("a", 0, 1, "1"), read("b", 2, 3, "1")]
    bad = [replace(one, key="other") for one in REJECTED["a stale read"]]
    witness = check([*good, *bad])
    assert witness is not None and witness.key == "other"


def test_the_witness_is_the_shortest_failing_prefix_since_the_last_quiet_point() -> None:
    history = [
        write("a", 0, 1, "1"),
        write("lost", 2, math.inf, "9"),
        write("a", 3, 5, "2"),
        read("b", 4, 6, "7"),
        read("c", 7, 8, "8"),
    ]
    witness = check(history)
    assert witness is not None
    assert witness.calls == (history[1], history[2], history[3])
    assert (witness.values, witness.prefix_calls) == (("1",), 4)
    assert str(witness).splitlines()[-1] == "  4.000000 to 6.000000 b read '7'"
    assert "held '1' when" in str(witness)


def test_thousands_of_calls_with_many_of_unknown_outcome_are_judged_in_seconds() -> None:
    history = list(_made(random.Random(4), calls=3_000, clients=6, unknown_share=0.03))
    began_s = perf_counter()
    assert check(history) is None
    last_read = max((one for one in history if one.kind is Kind.READ), key=lambda one: one.called)
    history[history.index(last_read)] = replace(last_read, value="never written")
    assert check(history) is not None
    assert perf_counter() - began_s < 30.0


@given(seed=st.integers(0, 10**9), clients=st.integers(1, 6), calls=st.integers(1, 60))
def test_a_history_made_by_one_register_is_accepted(seed: int, clients: int, calls: int) -> None:
    assert check(_made(random.Random(seed), calls, clients, unknown_share=0.1)) is None


@given(seed=st.integers(0, 10**9), clients=st.integers(1, 6), calls=st.integers(2, 60))
def test_a_read_of_what_was_never_written_is_always_found(
    seed: int, clients: int, calls: int
) -> None:
    rng = random.Random(seed)
    history = list(_made(rng, calls, clients, unknown_share=0.1))
    reads = [place for place, one in enumerate(history) if _answered_read(one)]
    if reads:
        place = rng.choice(reads)
        history[place] = replace(history[place], value="never written")
        assert check(history) is not None


@settings(max_examples=500)
@given(seed=st.integers(0, 10**9), clients=st.integers(1, 4), calls=st.integers(1, 6))
def test_a_changed_history_is_judged_as_trying_every_order_judges_it(
    seed: int, clients: int, calls: int
) -> None:
    rng = random.Random(seed)
    history = list(_made(rng, calls, clients, unknown_share=0.2, values=3))
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(history))
        history[place] = _changed(rng, history[place])
    assert (check(history) is None) == _explained(history)


def _answered_read(operation: Operation) -> bool:
    return operation.kind is Kind.READ and not operation.unknown


def _made(
    rng: random.Random, calls: int, clients: int, unknown_share: float, values: int = 10**6
) -> Iterator[Operation]:
    """Calls of a real register: each has its instant, and begins and ends somewhere around it."""
    held: Value = None
    free_s = [0.0] * clients
    instant_s = 0.0
    for number in range(calls):
        instant_s += rng.random()
        client = rng.randrange(clients)
        called = max(free_s[client], instant_s - rng.random() * clients)
        instant_s = max(instant_s, called + 0.001)
        returned = instant_s + rng.random() * clients * 0.5
        free_s[client] = returned + 0.001
        unknown = rng.random() < unknown_share
        operation = _call(rng, f"client {client}", called, returned, held, number % values)
        # What is unknown may have happened here, or never.
        if (
            operation.kind is not Kind.READ
            and operation.done
            and rng.random() < 0.5 + (not unknown)
        ):
            held = operation.value
        yield replace(operation, returned=math.inf) if unknown else operation


def _call(
    rng: random.Random, client: str, called: float, returned: float, held: Value, number: int
) -> Operation:
    kind = rng.choice(list(Kind))
    if kind is Kind.READ:
        return read(client, called, returned, held)
    if kind is Kind.WRITE:
        return write(client, called, returned, f"{number}")
    expected = held if rng.random() < 0.7 else "other"
    return swap(client, called, returned, expected, f"{number}", done=expected == held)


def _changed(rng: random.Random, operation: Operation) -> Operation:
    """The same call with another answer, or another end."""
    if operation.kind is Kind.COMPARE_AND_SET and rng.random() < 0.5:
        return replace(operation, done=not operation.done)
    if rng.random() < 0.3:
        return replace(operation, returned=operation.called + rng.random())
    return replace(operation, value=rng.choice([None, "0", "1", "2"]))


def _explained(history: Sequence[Operation]) -> bool:
    """Whether any order of all that is known and any part of what is not explains everything."""
    unknown = [place for place, one in enumerate(history) if one.unknown]
    known = [place for place, one in enumerate(history) if not one.unknown]
    for bits in range(1 << len(unknown)):
        used = [place for position, place in enumerate(unknown) if bits >> position & 1]
        if any(_orders(history, order) for order in permutations([*known, *used])):
            return True
    return False


def _orders(history: Sequence[Operation], order: Sequence[int]) -> bool:
    held: Value = None
    latest_call = -math.inf
    for place in order:
        operation = history[place]
        # Whatever came before it in the order must not have begun after it had ended.
        if latest_call > operation.returned:
            return False
        latest_call = max(latest_call, operation.called)
        if operation.kind is Kind.READ:
            if operation.value != held and not operation.unknown:
                return False
        elif operation.kind is Kind.WRITE:
            held = operation.value
        elif operation.unknown:
            held = operation.value if operation.expected == held else held
        elif operation.done != (operation.expected == held):
            return False
        elif operation.done:
            held = operation.value
    return True
