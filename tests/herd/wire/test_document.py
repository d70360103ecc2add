"""What docs/formats.md says of calls and answers is what is sent."""

import re
import typing
from pathlib import Path

import pytest

from herd.wire import framing, messages, values

ROOT = Path(__file__).resolve().parents[3]
FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
SECTION = FORMATS.split("\n## Calls of sessions\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "kinds"),
    [("**Calls**", messages.Call), ("**Answers**", messages.Answer)],
    ids=["calls", "answers"],
)
def test_every_message_has_its_number_and_its_fields(title: str, kinds: object) -> None:
    sentence = SECTION.split(title)[1].split("\n\n")[0]
    listed = {
        (int(number), name, tuple(filter(None, re.split(r",\s+", fields))))
        for number, name, fields in re.findall(r"(\d+) (\w+) \[([^\]]*)\]", sentence)
    }
    known = {
        (kind.__struct_config__.tag, kind.__name__, kind.__struct_fields__)
        for kind in typing.get_args(kinds)
    }
    assert listed == known


def test_the_version_stands_in_the_table() -> None:
    (line,) = [line for line in FORMATS.splitlines() if line.startswith("| calls of sessions |")]
    assert line.split("|")[-2].strip() == f"{messages.FORMAT_MAJOR}.{messages.FORMAT_MINOR}"


def test_kinds_of_frames_modes_and_extensions_are_listed() -> None:
    for number, name in ((framing.CALL, "CALL"), (framing.ANSWER, "ANSWER")):
        assert f"{number} {name}" in SECTION
    assert f"{framing.CANCEL} CANCEL" in SECTION
    modes = [int(number) for number in re.findall(r"\b(\d+) ", SECTION.split("`mode` is")[1])][:6]
    assert modes == [
        messages.AUTOCOMMIT,
        messages.SNAPSHOT,
        messages.WITHOUT_ARROW,
        messages.ONLY_ARROW,
        messages.KEEP_MODE,
        messages.FOLLOWER,
    ]
    extensions = SECTION.split("extension types:")[1].split("**Calls**")[0]
    assert {int(n) for n in re.findall(r"(\d) (?:[A-Z]|int)", extensions)} == set(values._UNPACK)
