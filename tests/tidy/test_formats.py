"""What docs/formats.md says of sizes, numbers and versions is what the code writes."""

import enum
import re
import typing
from pathlib import Path

import msgspec
import pytest

from blobit import object_id
from engine import limits
from engine.bookie import folder, segment
from engine.folder import lock
from engine.log import log_list
from engine.metadata import facts_format, ledgers, remote_messages, zookeeper
from engine.state import image, rocks
from engine.transport import frames
from engine.transport.contract import LedgerFacts, Status

ROOT = Path(__file__).resolve().parents[2]
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def section(title: str, level: int = 2) -> str:
    """The text under a heading, up to the next one of its level or above."""
    start = re.search(rf"^{'#' * level} {title}$", FORMATS, re.MULTILINE)
    assert start is not None, title
    rest = FORMATS[start.end() :]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end is not None else rest


def field_ends(text: str, title: str) -> list[int]:
    """Where each field of the table with this title ends, by its offset and its bytes."""
    table = text.split(title)[1].split("\n\n")[0]
    return [int(at) + int(size) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", table, re.M)]


@pytest.mark.parametrize(
    ("text", "title", "size_bytes"),
    [
        (section("Metadata log"), "file header (16)", facts_format.FILE_HEADER_BYTES),
        (section("Metadata log"), "batch header (32)", facts_format.BATCH_HEADER_BYTES),
        (section("Journal segments"), "segment header (84)", segment.SEGMENT_HEADER_BYTES),
        (section("Journal segments"), "record header (56)", segment.RECORD_HEADER_BYTES),
        (section("Frames"), "frame header (28)", frames.HEADER_BYTES),
        (section("State of a replica"), "mark (20)", rocks.MARK_BYTES),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_a_header_has_the_fields_that_are_written_down(
    text: str, title: str, size_bytes: int
) -> None:
    ends = field_ends(text, title)
    starts = [0, *ends]
    assert f"({size_bytes})" in title
    assert ends[-1] == size_bytes
    assert all(f"| {start} |" in text for start in starts[:-1]), "a gap or an overlap"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [(section("Journal segments"), segment.Kind), (section("Frames"), frames.Kind)],
    ids=["records", "frames"],
)
def test_every_kind_has_its_row_and_no_other_has(text: str, kinds: type[enum.IntEnum]) -> None:
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, re.MULTILINE)
    assert rows == [(str(kind.value), kind.name) for kind in kinds]


@pytest.mark.parametrize(
    ("title", "codes"),
    [("**Statuses**", Status), ("**Error codes**", frames.ErrorCode)],
    ids=["statuses", "errors"],
)
def test_every_code_is_listed_with_its_number(title: str, codes: type[enum.IntEnum]) -> None:
    sentence = section("Frames").split(title)[1].split("\n\n")[0]
    listed = re.findall(r"(\d+) ([A-Z][A-Z_]+)", sentence)
    assert listed == [(str(code.value), code.name) for code in codes]


@pytest.mark.parametrize(
    ("row", "version"),
    [
        ("metadata log", f"{facts_format.FORMAT_MAJOR}.{facts_format.FORMAT_MINOR}"),
        ("identity", f"{folder.FORMAT_MAJOR}.{folder.FORMAT_MINOR}"),
        (
            "journal segment",
            f"{segment.FORMAT_MAJOR}.{segment.FORMAT_MINOR}, records {segment.RECORD_VERSION}",
        ),
        ("lock", f"`format_major` {lock.FORMAT_MAJOR}"),
        ("values of the metadata store", f"`format_major` {ledgers.FORMAT_MAJOR}"),
        ("list of a log", f"`format_major` {log_list.FORMAT_MAJOR}"),
        ("nodes in ZooKeeper", f"`format_major` {zookeeper.FORMAT_MAJOR}"),
        ("frames", f"{frames.WIRE_MAJOR}.{frames.WIRE_MINOR}"),
        ("state of a replica", f"{rocks.FORMAT_MAJOR}"),
        ("image of a state", f"{image.FORMAT_MAJOR}.{image.FORMAT_MINOR}"),
        ("object id", f"{object_id.FORMAT}"),
    ],
    ids=lambda value: value.replace(" ", "-"),
)
def test_the_table_of_versions_is_up_to_date(row: str, version: str) -> None:
    lines = [line for line in FORMATS.splitlines() if line.startswith(f"| {row} |")]
    assert [line.split("|")[-2].strip() for line in lines] == [version]


def test_every_field_of_a_ledgers_metadata_is_described() -> None:
    described = section("Metadata log")
    missing = [
        field.name
        for field in msgspec.structs.fields(ledgers.LedgerMetadata)
        if f"`{field.name}`" not in described
    ]
    assert missing == []


def test_every_field_of_a_logs_list_is_described() -> None:
    described = section("Logs")
    missing = [
        field.name
        for field in msgspec.structs.fields(log_list.LogList)
        if f"`{field.name}`" not in described
    ]
    assert missing == []


def test_the_example_of_a_logs_list_is_what_is_written() -> None:
    words = re.search(r"^    (86 [0-9a-f\s]+?)\n\n", section("Logs"), re.MULTILINE)
    assert words is not None
    value = bytes.fromhex("".join(words[1].split()))
    decoded = log_list.decode_list(value)
    assert msgspec.msgpack.encode(decoded) == value
    assert (decoded.epoch, decoded.ledgers, decoded.token) == (3, (7, 9), 99)


def test_the_number_of_facts_about_a_ledger_is_that_of_the_description() -> None:
    listed = FORMATS.split("`LedgerFacts`, in this order:")[1].split("\n\n")[0]
    assert listed.count(",") + 1 == len(msgspec.structs.fields(LedgerFacts))


def test_metadata_calls_are_numbered_as_listed() -> None:
    listed = re.findall(r"(\d+) (\w+)", FORMATS.split("**Metadata calls**")[1].split("\n\n")[0])
    calls = typing.get_args(remote_messages.Call)
    tags = {str(call.__struct_config__.tag): call.__name__.lower() for call in calls}
    assert {number: name.replace("_", "") for number, name in listed} == tags


def test_limits_that_the_formats_name_hold() -> None:
    assert limits.ENTRY_BYTES_MAX == 4 * limits.MIB and "at most 4 MiB" in FORMATS
    assert limits.FRAME_BYTES_MAX == 16 * limits.MIB and "at most 16 MiB" in FORMATS
    assert limits.RUN_ENTRIES_MAX == 256 and "1 to 256 consecutive entries" in FORMATS
    assert limits.CUSTOM_METADATA_BYTES_MAX == 64 * limits.KIB and "at most 64 KiB" in FORMATS
    assert object_id.TEXT_CHARACTERS_MAX == 72 and "at most 72 characters" in FORMATS
