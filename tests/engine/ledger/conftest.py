"""Coroutine tests of this folder run in virtual time: all that they use is in memory."""

from tests.simulation.virtual import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
