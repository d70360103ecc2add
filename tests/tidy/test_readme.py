"""No document leads astray. What the pages tell to type is run by tests/docs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")
NAMED_FILE = re.compile(r"`((?:engine|blobit|broker|herdbook|benchmarks|tests)/[\w/.]+?)/?`")
FENCED = re.compile(r"```.*?```", re.DOTALL)
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for one in FOLDERS for path in one.rglob("*.md"))])


def astray(text: str, folder: Path) -> list[str]:
    """What a document's links and its names of files mean, and is not there."""
    prose = FENCED.sub("", text)
    links = [target for target in LINK.findall(prose) if not (folder / target).exists()]
    return links + [name for name in NAMED_FILE.findall(prose) if not (ROOT / name).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    assert astray(document.read_text(encoding="utf-8"), document.parent) == []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    assert astray("[x](nowhere.md) and [y](README.md)", ROOT) == ["nowhere.md"]
    assert astray("`engine/run.py`, `engine/walk.py`", ROOT) == ["engine/walk.py"]


def test_the_readme_names_both_commands_and_where_to_read_on() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for needed in ("make demo", "make test", "ARCHITECTURE.md", "docs/guarantees.md"):
        assert needed in text
