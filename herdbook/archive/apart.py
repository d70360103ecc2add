"""A store and its backups lie in folders apart: neither goes with the other."""

import os
from pathlib import Path

from engine.errors import InvalidRequest


def check_apart(backups: Path, store: Path) -> None:
    """Raise `InvalidRequest` where one folder is the other, or lies in it, however named. Blocks.

    Either may be not there yet.
    """
    first, second = Path(os.path.realpath(backups)), Path(os.path.realpath(store))
    if first == second or first in second.parents or second in first.parents:
        raise InvalidRequest(
            f"the backups' folder {first} and the store's, {second}, lie one in the other: "
            "name a folder apart, best on another machine"
        )
