"""What the platform has to send: files of a folder or messages of an mbox, by whose they are.

Invariants:
- A name says whose it is, "anna/000017-decimal.py", and begins with nothing that Spark passes over.
- The source stays as it is: what is gathered are links to its files, or copies.
"""

import mailbox
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from engine.errors import InvalidRequest
from herdbook.walk import walk

TENANTS: Final = {"anna": 4, "bert": 2, "cleo": 1}
"""Who sends, and how many of their tasks may run at the same time."""
_TURNS: Final = ("anna", "bert", "anna", "cleo", "bert", "anna")
_PLAIN: Final = re.compile(r"[^A-Za-z0-9.-]+")
_NAME_LENGTH_MAX: Final = 60


class Gathered(NamedTuple):
    """What there is: how many messages, their bytes, and the folder in which they lie now."""

    folder: Path
    messages: int
    size_bytes: int


def gather(source: Path, folder: Path, limit: int) -> Gathered:
    """Lay out at most `limit` messages in a folder. Raises `InvalidRequest`, `OSError`."""
    for tenant in TENANTS:
        (folder / tenant).mkdir(parents=True)
    count = size_bytes = 0
    for message in _messages(source):
        if count == limit:
            break
        tenant = _TURNS[count % len(_TURNS)]
        plain = _PLAIN.sub("_", message.name)[-_NAME_LENGTH_MAX:]
        target = folder / tenant / f"{count:06d}-{plain}"
        size_bytes += message.lay(target)
        count += 1
    if not count:
        raise InvalidRequest(f"{source} holds no file that could be sent")
    return Gathered(folder, count, size_bytes)


class _Message(NamedTuple):
    name: str
    file: Path | None
    text: bytes = b""

    def lay(self, target: Path) -> int:
        """Put it there; returns its bytes."""
        if self.file is None:
            target.write_bytes(self.text)
        else:
            try:
                os.link(self.file, target)
            except OSError:
                shutil.copyfile(self.file, target)
        return target.stat().st_size


def _messages(source: Path) -> Iterator[_Message]:
    if source.is_dir():
        files, _ = walk(source)
        for file in files:
            # An empty one is nothing to send.
            if file.lstat().st_size and os.access(file, os.R_OK):
                yield _Message(file.name, file)
        return
    if not source.is_file():
        raise InvalidRequest(f"{source} is neither a folder nor an mbox")
    box = mailbox.mbox(source, create=False)
    try:
        for number, key in enumerate(box.iterkeys()):
            # A message that was parsed is written otherwise than it was.
            yield _Message(f"{number}.eml", None, box.get_bytes(key))
    finally:
        box.close()
