"""What holds for every file of the console: how it is built, and that its colours can be read."""

import re
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from herdbook.cli.main import app
from tests.tidy.rules import COLUMNS_MAX, MACHINE_PATHS, REGISTRY_HOSTS, UNFINISHED

CONSOLE: Final = Path(__file__).parents[2] / "herdbook" / "console"
FILES: Final = sorted(path for path in CONSOLE.rglob("*") if path.is_file())
PALETTE: Final = (CONSOLE / "palette.css").read_text()
CONTRAST_MIN: Final = 4.5
EDGE_CONTRAST_MIN: Final = 3.0
TEXTS: Final = ("ink", "quiet", "accent", "good", "warn", "bad")
GROUNDS: Final = ("page", "surface", "sunken")
PAIRS: Final = (
    *product(TEXTS, GROUNDS),
    *product((f"series-{number}" for number in range(1, 7)), ("surface",)),
    *(
        (text, f"{kind}-wash")
        for kind in ("good", "warn", "bad")
        for text in (kind, "ink", "quiet")
    ),
    ("accent", "bad-wash"),
    ("on-accent", "accent"),
    ("on-bad", "bad"),
    ("page", "ink"),
)
FROM_TEXT: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|"
    r"DOMParser|createContextualFragment|setHTML|srcdoc"
)
ELSEWHERE: Final = re.compile(r"(https?:)?//(?!www\.w3\.org/2000/svg)[\w-]+\.[\w.-]+|@import")


def colours(name: str) -> tuple[str, str]:
    """A colour of the palette in the light theme and in the dark one."""
    found = re.search(rf"--{name}: light-dark\((#\w{{6}}), (#\w{{6}})\);", PALETTE)
    assert found is not None, name
    return found[1], found[2]


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours: 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("text", "ground"), PAIRS, ids=lambda name: str(name))
def test_a_text_can_be_read_on_its_ground_in_both_themes(text: str, ground: str) -> None:
    for one, other in zip(colours(text), colours(ground), strict=True):
        assert contrast(one, other) >= CONTRAST_MIN, (text, ground, contrast(one, other))


@pytest.mark.parametrize("line", ["edge", "focus"])
def test_the_edges_of_fields_and_of_the_focus_can_be_seen(line: str) -> None:
    for ground in ("page", "surface"):
        for one, other in zip(colours(line), colours(ground), strict=True):
            assert contrast(one, other) >= EDGE_CONTRAST_MIN, (line, ground)


def test_contrast_is_counted_as_it_is_defined() -> None:
    assert contrast("#000000", "#ffffff") == 21
    assert round(contrast("#767676", "#ffffff"), 2) == 4.54


def test_colours_stand_in_the_palette_alone() -> None:
    sheets = [path for path in FILES if path.suffix == ".css" and path.name != "palette.css"]
    wild = [path.name for path in sheets if re.search(r"#[0-9a-f]{3,8}\b|rgb\(", path.read_text())]
    assert len(sheets) >= 3 and wild == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_console_keeps_the_rules_of_the_house(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert [line for line in lines if len(line) > COLUMNS_MAX] == []
    assert not UNFINISHED.search(text)
    assert not MACHINE_PATHS.search(text) and not REGISTRY_HOSTS.search(text)
    if path.suffix in (".js", ".css"):
        assert text.startswith(("//", "/*")), "it does not say what it is for"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_makes_elements_of_text_or_asks_another_host(path: Path) -> None:
    text = path.read_text()
    assert FROM_TEXT.findall(text) == []
    assert [found[0] for found in ELSEWHERE.finditer(text)] == []


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    page = (CONSOLE / "index.html").read_text()
    assert re.findall(r"<style|style=|\son\w+=|javascript:", page) == []
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))


def test_every_import_is_a_file_of_the_console_and_every_module_is_imported() -> None:
    modules = [path for path in FILES if path.suffix == ".js" and path.name != "theme_first.js"]
    found = {
        (path.parent / target).resolve()
        for path in modules
        for target in re.findall(r'(?:from|import\() ?"([^"]+)"', path.read_text())
    }
    assert [path for path in found if not path.is_file()] == []
    pages = {path.resolve() for path in (CONSOLE / "pages").iterdir()}
    start = (CONSOLE / "main.js").resolve()
    assert {path.resolve() for path in modules} - found - pages == {start}


def test_every_command_that_a_page_names_exists() -> None:
    told = "".join(path.read_text() for path in FILES)
    named = sorted(set(re.findall(r'"herdbook ((?:[a-z]+ ?)+)', told)))
    assert len(named) >= 4
    for command in named:
        assert CliRunner().invoke(app, [*command.split(), "--help"]).exit_code == 0, command
