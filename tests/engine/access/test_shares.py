"""How much each user holds of what all have."""

import asyncio

from engine.access.shares import Shares


def test_a_user_holds_a_quarter_and_all_no_more_than_there_is() -> None:
    shares = Shares(8)
    assert shares.take("bob", 2) and not shares.take("bob")
    assert shares.take("eve") and not shares.take("eve"), "a quarter of what bob leaves"
    # Who is no user has what is left.
    assert shares.take("", 5) and not shares.take("") and not shares.take("ann")
    shares.give_back("bob", 2)
    assert shares.held == 6 and shares.take("ann")


def test_a_share_is_as_large_as_one_thing_needs_but_leaves_half() -> None:
    shares = Shares(8, least=3)
    assert shares.take("bob", 3) and not shares.take("bob")
    assert shares.take("eve", 3) and not shares.take("eve")
    assert not shares.take("ann", 2) and shares.take("ann")


def test_users_who_take_all_that_they_may_leave_room_for_the_next_one_and_for_the_cluster() -> None:
    shares = Shares(1_024)
    for number in range(20):
        user = f"user-{number}"
        assert shares.take(user), f"{user} finds room"
        while shares.take(user):
            pass
    assert shares.take("", 64), "a sixteenth is not for users"


async def test_who_waits_is_let_in_before_those_who_hold_more() -> None:
    shares = Shares(8)
    assert shares.take("bob", 2) and shares.take("eve") and shares.take("", 5)
    let_in: list[str] = []

    async def wait(user: str) -> None:
        await shares.acquire(user)
        let_in.append(user)

    tasks = [asyncio.create_task(wait(user)) for user in ("eve", "ann", "ann")]
    await asyncio.sleep(0)
    assert not let_in
    shares.give_back("bob", 2)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert let_in == ["ann"], "eve holds one, ann held nothing"
    tasks[2].cancel()
    await asyncio.wait(tasks[2:])
    shares.give_back("ann")
    await asyncio.wait(tasks[:1])
    assert let_in == ["ann", "eve"] and shares.held_by("ann") == 0
