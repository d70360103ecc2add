"""A node in one process, whose log somebody takes, or does not."""

import select
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, logging, sys
from herdbook.node import serving
from herdbook.node.settings import NodeSettings, Role

class Talking:
    def __init__(self, settings, roles, tell):
        pass
    async def run(self, ended):
        for number in range(200):
            logging.getLogger("engine").info("%d %s", number, "moo" * 300)
        print("went on", flush=True)

serving.Roles = Talking
# A role that listens at no port: at the usual ones another test may.
settings = NodeSettings(data=sys.argv[1], roles=(Role.BOOKIE,))
asyncio.run(serving.serve_node(settings, print))
"""


def test_a_reader_of_its_log_that_stands_still_holds_it_not_up(tmp_path: Path) -> None:
    """It says more than a pipe holds before anybody reads."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], 20)[0], "it waits for who reads its log"
        assert process.stdout.readline() == "went on\n"
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert [line.split()[3] for line in errors.splitlines()] == [str(each) for each in range(200)]
