"""What the site needs beyond its pages: those that lie outside of `docs/`, and links to the code.

mkdocs calls the functions named `on_...` while it builds.

Invariants:
- A link in a document leads to the same thing in the project's folder and on the site; where the
  site does not have it, its words stay and the link goes.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[2]
OUTSIDE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "deploy/README.md": "deploy.md",
    "tests/mutants/README.md": "internals/mutants.md",
    "proto/bookie.proto": "proto/bookie.proto",
    "proto/broker.proto": "proto/broker.proto",
    "proto/herd.proto": "proto/herd.proto",
    "examples/replicated_map.py": "examples/replicated_map.py",
    "examples/rolling_restart.py": "examples/rolling_restart.py",
}
"""Files of the project that are part of the site, and where they are there."""

_ORIGINS: Final = {there: here for here, there in OUTSIDE.items()}
_LINK: Final = re.compile(
    r"(?<!!)\[(?P<words>[^\]\n]*(?:\n[^\]\n]*)?)\]\((?P<to>(?!\w+:|#)[^)\s]+)\)"
)
_FENCE: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
    """Take in what lies outside of `docs/`."""
    for here, there in OUTSIDE.items():
        files.append(File.generated(config, there, content=(ROOT / here).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Lead the page's links to where the site has it."""
    here = page.file.src_uri
    pieces = _FENCE.split(markdown)
    return "".join(
        piece if piece.startswith("```") else linked(piece, here, set(files.src_uris))
        for piece in pieces
    )


def linked(prose: str, here: str, known: set[str]) -> str:
    """A text of the page `here` with its links as the site needs them."""
    origin = posixpath.dirname(_ORIGINS.get(here, f"docs/{here}"))

    def lead(match: re.Match[str]) -> str:
        path, mark, anchor = match["to"].partition("#")
        target = posixpath.normpath(posixpath.join(origin, path))
        there = OUTSIDE.get(target, target.removeprefix("docs/"))
        if there not in known and (ROOT / target).exists():
            return match["words"]
        way = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"[{match['words']}]({way}{mark}{anchor})"

    return _LINK.sub(lead, prose)
