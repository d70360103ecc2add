"""A program with defects that the matrix must find.

    python -m tests.crash_matrix.once FOLDER NOTES [WHAT ...]

It is ready once, and ends when it is started a second time; with WHAT it is ready each time, and
notes what it never stored.
"""

import signal
import sys
from pathlib import Path

from tests.crash_matrix.client import Notes


def main() -> None:
    """The program."""
    folder, notes, *what = sys.argv[1:]
    if what:
        Notes(Path(notes)).add(what[0], " ".join(what[1:]))
    elif (Path(folder) / "lock").exists():
        sys.exit("not a second time")
    else:
        (Path(folder) / "lock").touch()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
