"""The blocks of code of a page, as a test finds them.

A comment in front of a block says what is to be known of it beyond its text:

- `<!-- not run: WHY -->`: it needs what a test does not have;
- `<!-- beside: WORDS -->`: it goes on running, as in a terminal of its own; what comes next waits
  until it has printed these words;
- `<!-- fails -->`: its last command ends with another status than 0.

`<!-- beforehand: COMMANDS -->` stands alone: what a reader has already, and a fresh folder not.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
)
SHELL: Final = frozenset({"sh", "bash", "console"})
EXECUTED: Final = SHELL | {"python"}
SHOWN: Final = frozenset({"text", "toml", "json", "yaml", "ini", "http", "sql", "go", "proto"})
"""What stands there to be read, or what tests of its own page see to."""

_FENCE: Final = re.compile(
    r"(?:^<!-- (?P<alone>beforehand): (?P<commands>.*?) -->$)"
    r"|(?:^<!-- (?P<note>not run|beside|fails)(?:: (?P<words>.*?))? -->\n+)?"
    r"^```(?P<kind>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: where it stands, what it is and what it holds."""

    place: str
    """The page and the line, as editors name them."""
    kind: str
    """The language behind the fence; `beforehand` for commands that are not shown."""
    text: str
    note: str = ""
    """`not run`, `beside`, `fails`, or nothing."""
    words: str = ""
    """What the note says: a reason, or the words to wait for."""

    @property
    def executed(self) -> bool:
        """Whether a reader of the page would run it, and a test can."""
        return self.kind in EXECUTED | {"beforehand"} and self.note != "not run"


def text_of(page: str) -> str:
    """What a page says; it is named from the project's folder on."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    return blocks_in(text_of(page), page)


def blocks_in(text: str, page: str) -> list[Block]:
    """All blocks of a text that is the page of that name."""
    found = []
    for match in _FENCE.finditer(text):
        place = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
        if match["alone"]:
            found.append(Block(place, "beforehand", match["commands"] + "\n"))
        else:
            note, words = match["note"] or "", match["words"] or ""
            found.append(Block(place, match["kind"], match["text"], note, words))
    return found
