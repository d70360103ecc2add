"""Coroutine tests of this folder run in virtual time, except those marked `real_time`.

`turns()` lets no time pass here: use `elapse()` to show that nothing happens.
"""

from tests.simulation.virtual import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
