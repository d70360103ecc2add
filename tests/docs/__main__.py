"""Make the pages of reference anew: `python -m tests.docs`, which `make docs` calls."""

from tests.docs.blocks import ROOT
from tests.docs.generated import PAGES

for name, page in PAGES.items():
    (ROOT / name).write_text(page(), encoding="utf-8")
