"""Pages that are made of the code say what the code says now."""

from collections.abc import Callable

import pytest

from tests.docs.blocks import ROOT
from tests.docs.generated import PAGES


@pytest.mark.parametrize(("name", "page"), PAGES.items(), ids=PAGES.keys())
def test_a_page_that_is_made_of_the_code_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    said = (ROOT / name).read_text(encoding="utf-8")
    assert said == page(), f"{name} is older than the code: make docs"


def test_every_layer_command_path_and_table_has_its_place() -> None:
    texts = {name: page() for name, page in PAGES.items()}
    assert "### [supervisor]" in texts["docs/reference/settings.md"]
    assert "## herdbook serve" in texts["docs/reference/cli.md"]
    assert "### POST /api/v1/tasks\n" in texts["docs/reference/http-api.md"]
    assert "`NoSuchObject`" in texts["docs/reference/errors.md"]
