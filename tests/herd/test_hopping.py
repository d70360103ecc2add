"""Calls from many threads to one loop: each gets its own answer, and none is forgotten."""

import asyncio
import os
import threading
from collections.abc import Callable

import pytest

from engine.errors import NotLeader
from engine.ports.system_loop import background_loop
from herd.errors import InterfaceError, LeaderUnavailable, OperationalError, ValueInvalid
from herd.hopping import Hopper

THREADS = 32
CALLS = 200


async def echo(value: object) -> object:
    return value


async def slow(value: object) -> object:
    for _ in range(3):
        await asyncio.sleep(0)
    return value


def at_once(hopper: Hopper, work: Callable[[int], None]) -> list[BaseException]:
    """Run something in many threads; returns what they raised."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread was never woken"
    return raised


def test_each_of_many_threads_gets_the_answers_to_its_own_calls() -> None:
    hopper = Hopper(background_loop())

    def work(number: int) -> None:
        for call in range(CALLS):
            function = slow if call % 7 == 0 else echo
            assert hopper.call(function, (number, call)) == (number, call)

    assert at_once(hopper, work) == []


def test_a_future_is_awaited_without_a_task() -> None:
    background = background_loop()
    hopper = Hopper(background)

    def future() -> "asyncio.Future[str]":
        made: asyncio.Future[str] = background.loop.create_future()
        background.loop.call_soon(made.set_result, "moo")
        return made

    assert hopper.call(future) == "moo"


def test_what_a_call_raises_is_raised_in_the_thread_that_made_it() -> None:
    hopper = Hopper(background_loop())

    async def fail(number: int) -> None:
        raise ValueInvalid(f"number {number}")

    def work(number: int) -> None:
        for _ in range(20):
            with pytest.raises(ValueInvalid, match=f"number {number} "):
                hopper.call(fail, number)

    assert at_once(hopper, work) == []


def test_an_error_of_the_engine_becomes_one_of_the_database() -> None:
    async def fail() -> None:
        raise NotLeader("somebody else does", "cow:1")

    with pytest.raises(LeaderUnavailable):
        Hopper(background_loop()).call(fail)


def test_a_function_that_raises_before_it_awaits_is_answered_too() -> None:
    async def never() -> None: ...

    def fail() -> "asyncio.Future[None]":
        raise KeyError("moo")

    hopper = Hopper(background_loop())
    with pytest.raises(KeyError):
        hopper.call(fail)
    assert hopper.call(echo, 1) == 1


def test_a_call_that_is_cancelled_says_that_its_outcome_is_unknown() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(OperationalError, match="closed while the call"):
        Hopper(background_loop()).call(cancelled)


def test_a_call_on_the_loops_own_thread_raises_and_does_not_hang() -> None:
    hopper = Hopper(background_loop())

    async def call_again() -> None:
        hopper.call(echo, 1)

    with pytest.raises(InterfaceError, match="event loop's thread"):
        hopper.call(call_again)


def test_a_forked_child_raises() -> None:
    hopper = Hopper(background_loop())
    hopper.call(echo, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hopper.call(echo, 1)
        except InterfaceError:
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)


class Interrupted(BaseException):
    pass


class InterruptedLock:
    """A lock whose first wait is interrupted, as by a signal."""

    def __init__(self, lock: "threading.Lock", before: Callable[[], None]) -> None:
        self._lock = lock
        self._before = before

    def acquire(self) -> bool:
        self._before()
        raise Interrupted

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("answered_before", [False, True])
def test_an_interrupted_wait_leaves_the_others_their_answers(
    monkeypatch: pytest.MonkeyPatch, answered_before: bool
) -> None:
    background = background_loop()
    hopper = Hopper(background)
    seen = threading.Event()

    async def tell() -> None:
        background.loop.call_soon(background.loop.call_soon, seen.set)

    from herd import hopping

    made = hopping._Call

    def before() -> None:
        if answered_before:
            seen.wait(10)

    def interrupted(function: object, arguments: tuple[object, ...]) -> object:
        call = made(function, arguments)  # type: ignore[arg-type]
        call.lock = InterruptedLock(call.lock, before)  # type: ignore[assignment]
        return call

    monkeypatch.setattr(hopping, "_Call", interrupted)
    with pytest.raises(Interrupted):
        hopper.call(tell)
    monkeypatch.undo()

    def work(number: int) -> None:
        assert hopper.call(echo, number) == number

    assert at_once(hopper, work) == []
