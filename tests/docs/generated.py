"""Pages that are made of the code. They are part of the project, so that they can be read there."""

from collections.abc import Callable
from typing import Final

from tests.docs import reference_cli, reference_errors, reference_http, reference_settings

PAGES: Final[dict[str, Callable[[], str]]] = {
    "docs/reference/cli.md": reference_cli.page,
    "docs/reference/settings.md": reference_settings.page,
    "docs/reference/http-api.md": reference_http.page,
    "docs/reference/errors.md": reference_errors.page,
}
