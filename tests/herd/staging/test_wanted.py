"""What options of a writer mean, and which mean nothing."""

import pytest

from herd.errors import ProgrammingError
from herd.staging.layout import Job, Mode, parse_locator
from herd.staging.wanted import parse_write


def test_a_table_is_appended_to_unless_something_else_is_said() -> None:
    assert parse_write({"table": "cow"}, overwrite=False) == ("default", "cow", Mode.APPEND, "")
    assert parse_write({"path": "cow"}, overwrite=True).mode is Mode.OVERWRITE
    said = {"table": "cow", "tablespace": "Farm", "upsert": "TRUE", "idempotency_key": "monday"}
    assert parse_write(said, overwrite=False) == ("farm", "cow", Mode.UPSERT, "monday")


@pytest.mark.parametrize(
    ("options", "overwrite", "said"),
    [
        ({}, False, "no table is named"),
        ({"table": "cow", "upsrt": "true"}, False, "no option upsrt"),
        ({"table": "cow", "upsert": "yes"}, False, "upsert is true or false, not 'yes'"),
        ({"table": "cow", "upsert": "true"}, True, "not both"),
    ],
)
def test_an_option_that_means_nothing_is_an_error(
    options: dict[str, str], overwrite: bool, said: str
) -> None:
    with pytest.raises(ProgrammingError, match=said):
        parse_write(options, overwrite=overwrite)


def test_the_batches_of_a_series_have_one_client_and_growing_numbers() -> None:
    first, second = Job("query", 7).identity, Job("query", 8).identity
    assert (first[:-8], int.from_bytes(first[-8:])) == (second[:-8], 7)
    assert Job("query", 7).name != Job("query", 8).name
    assert Job("other", 7).identity[:-8] != first[:-8]


@pytest.mark.parametrize("text", ["", "1/2/3", "1/2/3/4/5", "1/2/3/x", "1/-2/3/4"])
def test_what_names_no_blob_is_refused(text: str) -> None:
    with pytest.raises(ProgrammingError, match="names no staged rows"):
        parse_locator(text)
