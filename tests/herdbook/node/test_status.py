"""What a node says of itself, where that cannot be written."""

import asyncio
import errno
import os
from pathlib import Path

from herdbook.node.serving import Watch
from herdbook.node.settings import NodeSettings
from herdbook.node.status import FILE, StatusFile, read_status
from herdbook.node.supervisor import MemberState


def full(line: str) -> None:
    """As standard output on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_node_whose_own_loop_stands_still_is_silent_until_it_turns_again(
    tmp_path: Path,
) -> None:
    with StatusFile(tmp_path, NodeSettings()) as status:
        status.write({"node": MemberState("serving")})
        assert read_status(tmp_path).members["node"].state == "serving"
        # Its last sign of life was when the machine started.
        os.utime(tmp_path / FILE, (0, 0))
        told = read_status(tmp_path).members["node"]
        assert told.state == "silent"
        assert told.error == f"the loop of process {os.getpid()} stands still"
        beating = asyncio.create_task(status.beat())
        await asyncio.sleep(0)
        assert read_status(tmp_path).members["node"].state == "serving"
        beating.cancel()


def test_a_node_goes_on_when_its_file_and_its_output_cannot_be_written(tmp_path: Path) -> None:
    with StatusFile(tmp_path, NodeSettings(url="herdbook://zookeeper/x")) as status:
        watch = Watch(status, full)
        watch.note({"herd": MemberState("serving", at={"herd": "here"})})
        # Nothing can be written there, as on a full disk.
        (tmp_path / FILE).with_suffix(".new").mkdir()
        watch.note({"herd": MemberState("waiting")})
        watch.leaving()
        assert read_status(tmp_path).members["herd"].state == "serving"
        (tmp_path / FILE).with_suffix(".new").rmdir()
        watch.note({"herd": MemberState("starting")})
        assert read_status(tmp_path).members["herd"].state == "starting"
    assert not (tmp_path / FILE).exists()


def test_a_node_says_for_how_long_it_drains_where_that_has_an_end(tmp_path: Path) -> None:
    said: list[str] = []
    with StatusFile(tmp_path, NodeSettings()) as status:
        watch = Watch(status, said.append)
        watch.leaving(60_000)
        watch.leaving()
    assert said == [
        "draining, for 60 s at most; a second signal ends it at once",
        "draining; a second signal ends it at once",
    ]
