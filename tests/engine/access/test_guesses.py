"""Who guesses at passwords waits, and keeps nobody else out."""

import asyncio
from contextlib import ExitStack

import pytest

from engine.access.door import UserDoor
from engine.access.guesses import Guesses
from engine.errors import AccessRefused, TooManyTries
from tests.engine.access.known_users import KeptAudit, KnownUsers, user
from tests.engine.bookie.stable import StillClock


def wrong(guesses: Guesses, peer: str, user: str) -> int:
    """Guess wrong; how long somebody has to wait first, 0: not at all."""
    try:
        with guesses.trying(peer, user):
            raise AccessRefused("no")
    except TooManyTries as error:
        return error.wait_s
    except AccessRefused:
        return 0


def right(guesses: Guesses, peer: str, user: str) -> None:
    with guesses.trying(peer, user):
        pass


def test_who_guesses_waits_ever_longer_and_others_do_not() -> None:
    clock = StillClock()
    guesses = Guesses(clock)
    assert [wrong(guesses, "a", "ann") for _ in range(7)] == [0, 0, 0, 0, 0, 1, 1]
    assert wrong(guesses, "b", "ann") == 0 and wrong(guesses, "a", "bob") == 0
    waited = []
    for _ in range(8):
        wait_s = wrong(guesses, "a", "ann")
        waited.append(wait_s)
        clock.now_s += wait_s
        assert wrong(guesses, "a", "ann") == 0
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]
    clock.now_s += 60
    right(guesses, "a", "ann")
    assert wrong(guesses, "a", "ann") == 0
    clock.now_s += 601.0
    for number in range(25):
        assert wrong(guesses, "c", f"user-{number}") == 0
    assert wrong(guesses, "c", "another") > 0, "one address may not try one name after the other"


def test_strangers_behind_a_proxy_keep_nobody_out_who_was_let_in_there() -> None:
    guesses = Guesses(StillClock())
    for number in range(100):
        right(guesses, "proxy", f"honest-{number}")
    for number in range(25):
        assert wrong(guesses, "proxy", f"stranger-{number}") == 0
    assert wrong(guesses, "proxy", "stranger-25") > 0
    right(guesses, "proxy", "honest-7")
    right(guesses, "proxy", "")


def test_wrong_passwords_for_one_user_lock_out_no_other_user_of_the_address() -> None:
    clock = StillClock()
    guesses = Guesses(clock)
    for _ in range(120):
        wrong(guesses, "office", "ann")
        clock.now_s += 60.0
    clock.now_s += 1_000.0
    for _ in range(5):
        assert wrong(guesses, "office", "ann") == 0
    for number in range(24):
        assert wrong(guesses, "office", f"user-{number}") == 0
    assert wrong(guesses, "office", "one-more") > 0
    clock.now_s += 10.0
    right(guesses, "office", "ben")


def test_one_wrong_password_a_minute_locks_out_nobody_at_an_address() -> None:
    clock = StillClock()
    guesses = Guesses(clock)
    for number in range(25):
        assert wrong(guesses, "office", f"stranger-{number}") == 0
    assert wrong(guesses, "office", "stranger-25") == 10
    for number in range(100, 130):
        clock.now_s += 60.0
        assert wrong(guesses, "office", f"stranger-{number}") == 0
        right(guesses, "office", f"user-{number}")


def test_tries_that_are_judged_at_once_are_counted_when_they_begin() -> None:
    guesses, begun = Guesses(StillClock()), ExitStack()
    with pytest.raises(AccessRefused), begun:
        for number in range(25):
            begun.enter_context(guesses.trying("office", f"stranger-{number}"))
        assert wrong(guesses, "office", "another") > 0
        raise AccessRefused("no")


def test_tries_that_turn_out_right_or_are_not_judged_count_at_their_address_no_more() -> None:
    guesses = Guesses(StillClock())
    for number in range(100):
        wrong(guesses, "office", f"user-{number}")
        right(guesses, "office", f"user-{number}")
        with pytest.raises(OSError), guesses.trying("office", f"away-{number}"):
            raise OSError("the store is away")
    assert wrong(guesses, "office", "stranger") == 0


def test_another_spelling_of_a_name_and_another_address_of_a_network_are_no_new_tries() -> None:
    guesses = Guesses(StillClock())
    spellings = ["ann", "\uff41nn", "a\u00adnn", "an\u200bn", "ann"]
    for number, name in enumerate(spellings):
        assert wrong(guesses, f"2001:db8::{number}", name) == 0
    assert wrong(guesses, "2001:db8::aaaa:7", "an\uff4e") > 0
    assert wrong(guesses, "2001:db8:0:1::7", "ann") == 0, "that is another network"


def test_a_login_that_could_not_be_judged_is_no_guess() -> None:
    guesses = Guesses(StillClock())
    for _ in range(30):
        with pytest.raises(OSError), guesses.trying("a", "ann"):
            raise OSError("the store is away")
    right(guesses, "a", "ann")


def test_a_door_counts_by_address_whatever_the_port_and_lets_tokens_in() -> None:
    async def try_it() -> None:
        door = UserDoor(KnownUsers(user("ann")), KeptAudit(), "test", Guesses(StillClock()))
        peers = [f"10.0.0.7:{port}" for port in range(3)] + ["ipv4:10.0.0.7:8", "10.0.0.7:9"]
        for peer in peers:
            await door.verifier("ann", peer)
            with pytest.raises(AccessRefused), door.judging("ann", peer):
                raise AccessRefused("no")
        for peer in ("10.0.0.7:10", "ipv4:10.0.0.7:11"):
            with pytest.raises(TooManyTries, match="try again in 1 s"):
                await door.verifier("ann", peer)
        await door.verifier("ann", "10.0.0.8:1")
        assert (await door.by_token("token-ann", "10.0.0.7:12")).principal.name == "ann"
        assert (await door.by_call("token-ann")).principal.name == "ann"

    asyncio.run(try_it())


def test_an_invalid_name_takes_no_more_memory_than_others() -> None:
    guesses = Guesses(StillClock())
    name = "x" * 50_000
    assert [wrong(guesses, "a", name + end) for end in "abcdefg"] == [0, 0, 0, 0, 0, 1, 1]
    assert max(len(user) for _, user in guesses._tries) <= 256
