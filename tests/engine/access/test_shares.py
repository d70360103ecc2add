"""How much each user holds of what all have."""

from engine.access.shares import Shares


def test_a_user_holds_a_quarter_and_all_no_more_than_there_is() -> None:
    shares = Shares(8)
    assert shares.take("bob", 2) and not shares.take("bob")
    assert shares.take("eve", 2)
    # Who is no user has what is left.
    assert shares.take("", 4) and not shares.take("") and not shares.take("ann")
    shares.give_back("bob", 2)
    assert shares.held == 6 and shares.take("ann")


def test_a_share_is_no_less_than_one_thing_needs() -> None:
    shares = Shares(8, least=5)
    assert shares.take("bob", 5) and not shares.take("bob")
