"""Limits on waits for tasks, in total and per user."""

import pytest

from broker.access import Asking
from broker.errors import Overloaded
from broker.waits import Waits

ANN = Asking("ann", admin=False, tenants=("elsa",))
BEN = Asking("ben", admin=False, tenants=("rosa",))


def test_one_user_has_a_quarter_and_keeps_nobody_else_out() -> None:
    waits = Waits(8)
    with waits.some(ANN), waits.some(ANN):
        with pytest.raises(Overloaded, match="ann"), waits.some(ANN):
            pass
        with waits.some(BEN), pytest.raises(Overloaded, match="ben"), waits.some(BEN):
            pass
    with waits.some(ANN, 2):
        pass


def test_administrators_may_have_all_but_no_more() -> None:
    waits = Waits(8)
    with waits.some(Asking(), 8):
        for who in (Asking(), ANN):
            with pytest.raises(Overloaded), waits.some(who):
                pass
    with waits.some(ANN):
        pass
