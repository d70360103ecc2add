"""A folder is named by a path: the url of a cluster, put in its place, must not become a folder.

Invariants:
- What looks like a url is refused before anything is made: `Path` folds its slashes, and a folder
  called "herdbook:" would pass for the cluster that was meant.
"""

import re
from os import PathLike, fspath
from typing import Final

from engine.errors import InvalidRequest

# A single letter before the colon is a drive of another system, "./name:/x" a folder all the same.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(/|$)")


def refuse_url(path: str | PathLike[str], instead: str) -> None:
    """Raise `InvalidRequest` for a url where a folder's path belongs; `instead` says what to do."""
    name = fspath(path)
    if _URL.match(name):
        raise InvalidRequest(f"{name!r} is a url and no folder: {instead}")
