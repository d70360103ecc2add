"""The store's errors are found in what Spark makes of them."""

import pytest

from blobit.errors import NoSuchBucket
from engine.errors import NoSuchLedger
from herd.errors import Error, LeaderUnavailable, NoSuchTable, ProgrammingError
from herdbook.causes import cause

_SPARK = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance:
Traceback (most recent call last):
  File "herd/translating.py", line 3, in translating
engine.errors.NoSuchLedger: there is no ledger 7

The above exception was the direct cause of the following exception:

  File "herd/spark.py", line 61, in schema
{name}: {said}
 SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    "error",
    [
        NoSuchTable("there is no table cow"),
        NoSuchTable("there is no table cow", hint="SHOW TABLES lists them"),
        NoSuchTable("there is no table cow", hint="SHOW TABLES (or look) lists them", place=14),
        ProgrammingError("it has two (2) of them"),
        ProgrammingError("a message (with an end in parentheses)"),
        ProgrammingError("a ) that nobody opened)"),
        LeaderUnavailable("nobody leads", hint="try again"),
    ],
    ids=str,
)
def test_an_error_of_tables_is_found_as_it_was(error: Error) -> None:
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    found = cause(RuntimeError(_SPARK.format(name=name, said=error)))
    assert isinstance(found, Error) and type(found) is type(error)
    assert str(found) == str(error) and found.retryable == error.retryable


def test_errors_of_objects_and_ledgers_are_found() -> None:
    bucket = RuntimeError(_SPARK.format(name="blobit.errors.NoSuchBucket", said="no bucket x"))
    assert type(cause(bucket)) is NoSuchBucket
    found = cause(RuntimeError(_SPARK.format(name="builtins.OSError", said="it is full")))
    assert type(found) is NoSuchLedger and str(found) == "there is no ledger 7"


def test_an_error_of_spark_itself_has_none() -> None:
    assert cause(RuntimeError("[TABLE_OR_VIEW_NOT_FOUND] there is no herd: moo")) is None
    assert cause(RuntimeError("herd.errors.NoSuchThing: moo")) is None
    error = NoSuchTable("there is no table cow")
    assert cause(error) is error
