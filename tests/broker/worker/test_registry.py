"""Functions become types: their arguments are checked when submitted, and typed when called."""

import inspect
from typing import Any

import pytest

from broker.connection import Run
from broker.errors import InvalidTask
from broker.worker.registry import (
    Registry,
    TaskContext,
    TaskFunction,
    TryLater,
    decode_result,
    encode_result,
    task,
)


def made(function: Any, **options: Any) -> TaskFunction:
    registry = Registry()
    task(registry=registry, **options)(function)
    found = registry.of(function)
    assert found is not None
    return found


def run(payload: bytes, kind: str = "resize") -> Run:
    return Run(7, 2, "elsa", kind, payload, deadline_ms=99)


def resize(path: str, width: int = 640, *, sharp: bool | None = None) -> str:
    return f"{path} {width} {sharp}"


def double(data: bytes) -> bytes:
    return data * 2


def whoami(name: str, context: TaskContext) -> str:
    return f"{name} {context.token} {context.tenant} {context.deadline_ms}"


def nothing() -> None:
    return None


async def later(name: str) -> str:
    return name


def test_arguments_travel_by_name_and_defaults_are_the_functions_own() -> None:
    function = made(resize)
    payload = function.encode_arguments(("a.jpg",), {"sharp": True})
    assert payload == b'{"path":"a.jpg","sharp":true}'
    assert function.call(run(payload)) == "a.jpg 640 True"


@pytest.mark.parametrize(
    ("arguments", "named", "word"),
    [
        ((1,), {}, "Expected `str`"),
        ((), {}, "missing required"),
        (("a",), {"path": "b"}, "given twice"),
        (("a",), {"height": 1}, "unknown field"),
        (("a", 1, True), {}, "at most 2"),
        ((object(),), {}, "object"),
    ],
)
def test_wrong_arguments_are_refused_before_they_are_sent(
    arguments: tuple[Any, ...], named: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidTask, match=word):
        made(resize).encode_arguments(arguments, named)


@pytest.mark.parametrize("payload", [b"[", b"[]", b'{"path":1}', b'{"path":"\xff"}', b"\xff"])
def test_a_payload_that_does_not_fit_is_an_error_in_words(payload: bytes) -> None:
    with pytest.raises(InvalidTask, match="task resize"):
        made(resize).call(run(payload))


def test_a_function_of_bytes_gets_the_payload_as_it_is() -> None:
    function = made(double)
    assert function.encode_arguments((b"\xff",), {}) == b"\xff"
    assert function.call(run(b"\xff\x00")) == b"\xff\x00\xff\x00"
    with pytest.raises(InvalidTask, match="takes bytes"):
        function.encode_arguments(("text",), {})


def test_a_context_tells_the_attempt_and_is_no_part_of_the_payload() -> None:
    function = made(whoami)
    assert function.call(run(function.encode_arguments(("moo",), {}))) == "moo (7, 2) elsa 99"


def test_a_function_without_parameters_needs_no_payload() -> None:
    assert made(nothing).call(run(b"")) is None
    assert made(nothing).encode_arguments((), {}) == b"{}"


async def test_an_async_function_gives_a_coroutine() -> None:
    function = made(later)
    assert function.is_async
    call = function.call(run(b'{"name":"moo"}'))
    assert inspect.iscoroutine(call)
    assert await call == "moo"


def test_a_type_names_one_function() -> None:
    registry = Registry()
    task(registry=registry, name="x")(resize)
    task(registry=registry, name="x")(resize)
    with pytest.raises(InvalidTask, match="give one of the two another name"):
        task(registry=registry, name="x")(double)
    assert list(registry.functions) == ["x"]


def test_parameters_without_a_name_are_refused_at_once() -> None:
    def star(*values: int) -> None: ...
    def first(value: int, /) -> None: ...

    for function in (star, first):
        with pytest.raises(InvalidTask, match="name"):
            made(function)


def test_results_are_json_unless_they_are_bytes() -> None:
    assert encode_result(None) == b"" and decode_result(b"") is None
    assert encode_result({"a": [1]}) == b'{"a":[1]}' and decode_result(b'{"a":[1]}') == {"a": [1]}
    assert encode_result(b"\xff") == b"\xff" and decode_result(b"\xff", bytes) == b"\xff"
    assert made(resize).decode_result(b'"moo"') == "moo"
    with pytest.raises(InvalidTask, match="result"):
        encode_result(object())
    with pytest.raises(InvalidTask, match="result"):
        made(resize).decode_result(b"7")


def test_later_is_a_number_that_the_broker_can_keep() -> None:
    assert [TryLater("", after_ms=each).after_ms for each in (2**70, -1, 5)] == [
        100 * 366 * 24 * 3_600_000,
        0,
        5,
    ]
