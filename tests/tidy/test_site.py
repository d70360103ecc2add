"""The site of the documents: every link of it leads somewhere, nothing is loaded from afar."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.build_site import linked

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?P<source>[^\"' >]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon|modulepreload))"
    r"[^>]*\bhref=[\"']?(?P<link>[^\"' >]+)"
    r"|@import\s+[\"'(]*(?P<imported>[^\"')]+)|url\([\"']?(?P<url>[^\"')]+)"
)


def from_afar(text: str) -> list[str]:
    """What a page or a style sheet has a browser load from other hosts."""
    loaded = [next(filter(None, match.groups())) for match in LOADED.finditer(text)]
    return [each for each in loaded if re.match(r"(?:https?:)?//", each)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a link that leads nowhere ends that."""
    folder = tmp_path_factory.mktemp("site")
    # With --quiet mkdocs passes over what its strict mode is for.
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_document_is_a_page_of_the_site(site: Path) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        name = document.relative_to(ROOT / "docs").with_suffix(".html")
        page = name.with_name("index.html") if name.name == "README.html" else name
        assert (site / page).is_file(), page


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    parts = [path for path in site.rglob("*") if path.suffix in {".html", ".css"}]
    assert len(parts) > 20
    for part in parts:
        assert from_afar(part.read_text("utf-8")) == [], part


def test_what_comes_from_afar_is_noticed() -> None:
    assert from_afar('<script src="//cdn.example/x.js">') == ["//cdn.example/x.js"]
    assert from_afar('<link rel="stylesheet" href=https://x.example/a.css>')
    assert from_afar("@font-face { src: url(https://x.example/f.woff) }")
    assert from_afar('<script src="assets/x.js"></script><a href="https://x.example">') == []


def test_a_link_to_the_code_becomes_its_words() -> None:
    known = {"formats.md", "index.md", "internals/README.md"}
    assert linked("[a](../tests/tidy) [b](formats.md#x)", "wire.md", known) == "a [b](formats.md#x)"
    assert linked("[a](docs/formats.md)", "index.md", known) == "[a](formats.md)"
    assert linked("[a](../../README.md)", "internals/README.md", known) == "[a](../index.md)"
    assert linked("[a](gone.md)", "wire.md", known) == "[a](gone.md)"
