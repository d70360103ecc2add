"""What a writer is asked for: what means nothing is refused, and said why."""

import pyarrow as pa
import pytest

from blobit import BlobNotStored, InvalidName, SettingsInvalid
from blobit.staging.task import objects_of
from blobit.staging.wanted import WriteWanted, check_columns, parse_write

OBJECT = {"name": "string", "content": "binary"}


def test_a_bucket_is_named_by_option_or_by_path() -> None:
    assert parse_write({"bucket": "cows"}, overwrite=False) == WriteWanted("cows")
    options = {"path": "blobit://cows", "idempotency_key": " a ", "checkpointlocation": "x"}
    assert parse_write(options, overwrite=False) == WriteWanted("cows", "a")


@pytest.mark.parametrize(
    ("options", "overwrite", "said"),
    [
        ({}, False, "no bucket is named"),
        ({"bucket": "cows", "key": "x"}, False, "has no option key"),
        ({"bucket": "cows"}, True, "is not overwritten as a whole"),
    ],
)
def test_a_write_that_means_nothing_is_refused(
    options: dict[str, str], overwrite: bool, said: str
) -> None:
    with pytest.raises(SettingsInvalid, match=said):
        parse_write(options, overwrite=overwrite)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"name": "string"}, "needs a column content"),
        ({}, "needs a column name and a column content"),
        ({**OBJECT, "size": "int"}, "an object has no size"),
        ({**OBJECT, "name": "int"}, "name is string, and is given int"),
        ({**OBJECT, "metadata": "string"}, "metadata is map<string,string>"),
    ],
)
def test_columns_that_are_no_object_are_refused(columns: dict[str, str], said: str) -> None:
    check_columns({**OBJECT, "content_type": "string", "metadata": "map<string,string>"})
    with pytest.raises(SettingsInvalid, match=said):
        check_columns(columns)


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ({"name": None, "content": b""}, InvalidName, "NULL as name"),
        ({"name": "a", "content": None}, BlobNotStored, "object 'a' has NULL as content"),
        ({"name": "a\0", "content": b""}, InvalidName, "it has a NUL"),
        ({"name": "", "content": b""}, InvalidName, "an empty one"),
    ],
)
def test_a_row_that_is_no_object_is_refused(
    row: dict[str, object], error: type[Exception], said: str
) -> None:
    schema = pa.schema([("name", pa.string()), ("content", pa.binary())])
    batch = pa.RecordBatch.from_pylist([{"name": "good", "content": b"moo"}, row], schema)
    with pytest.raises(error, match=said):
        list(objects_of(batch))


def test_rows_become_objects_with_what_describes_them() -> None:
    schema = pa.schema(
        [
            ("metadata", pa.map_(pa.string(), pa.string())),
            ("content", pa.binary()),
            ("name", pa.string()),
            ("content_type", pa.string()),
        ]
    )
    rows = [
        {"name": "a", "content": b"1", "content_type": "x/y", "metadata": [("k", "v")]},
        {"name": "b", "content": b"", "content_type": None, "metadata": None},
    ]
    first, second = objects_of(pa.RecordBatch.from_pylist(rows, schema))
    assert (first.name, first.content, first.content_type) == ("a", b"1", "x/y")
    assert first.packed_metadata and not second.packed_metadata
    assert (second.content, second.content_type) == (b"", "")
