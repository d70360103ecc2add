"""Three machines on one: each is an address, with a file tree and a systemd of its own.

What a page says of machines is done in their place:

- `node-1.example` is a loopback address, and so is what a node listens at;
- `/etc/herdbook` and `/var/lib/herdbook` are folders of the machine's tree;
- `systemctl` and what else only root may do are small programs that come first in PATH.

Invariants:
- Every process is stopped by its id, and none outlives the test.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NODES: Final = (1, 2, 3)
COMMAND_S: Final = 310.0
_POLL_S: Final = 0.5
_UNIT: Final = ROOT / "deploy" / "systemd" / "herdbook.service"
_PROGRAMS: Final = {
    # The unit of this machine is its only one.
    "systemctl": f'exec "{sys.executable}" -m tests.operate.systemctl "$@"',
    "journalctl": 'cat "$MACHINE/journal"',
    # The test is the only user.
    "runuser": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
    "useradd": "",
    "pip": "",
    "install": """
words=()
while [ $# -gt 0 ]; do case "$1" in -o | -g) shift 2 ;; *) words+=("$1"); shift ;; esac; done
exec /usr/bin/install "${words[@]}"
""",
}


class Machines:
    """Three machines, and a fourth from which an operator works (number 0)."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self._folder = folder
        self._zookeeper = zookeeper
        number = os.getpid()
        self._net = f"127.{1 + (number >> 8) % 250}.{number % 256}"
        """Two runs of the tests must not meet at one port."""
        self._programs = folder / "programs"
        self._programs.mkdir()
        for name, text in _PROGRAMS.items():
            program = self._programs / name
            program.write_text(f"#!/bin/bash\n{text}\n")
            program.chmod(0o755)
        for machine in (0, *NODES):
            (self.tree(machine) / "etc/herdbook").mkdir(parents=True)
        self.more: dict[str, str] = {}
        """What the environment of each process has beside that; `{tree}` is its machine's tree."""
        self.desk = folder / "desk"
        """Where the operator works: the folder of the project, as far as a page needs it."""
        self.desk.mkdir()
        (self.desk / "deploy").symlink_to(ROOT / "deploy")

    def tree(self, machine: int) -> Path:
        """The files of one machine."""
        return self._folder / f"machine-{machine}"

    def address(self, machine: int) -> str:
        """Where a machine is."""
        return f"{self._net}.{machine}"

    def there(self, text: str, machine: int) -> str:
        """A text of a page as it is on one machine."""
        tree = self.tree(machine)
        for number in NODES:
            text = text.replace(f"node-{number}.example", self.address(number))
        for pattern, word in (
            (r"DNS:", "IP:"),
            (r"0\.0\.0\.0", self.address(machine)),
            (r"(zk1|zookeeper-1):2181\S*?(?=/)", self._zookeeper),
            (r"/opt/herdbook/bin", str(Path(sys.executable).parent)),
            (r"(?<![\w.])/etc/(herdbook|systemd)", rf"{tree}/etc/\1"),
            (r"(?<![\w.])/var/lib/herdbook", f"{tree}/var/lib/herdbook"),
        ):
            text = re.sub(pattern, word, text)
        return text

    def run(self, text: str, machine: int = 0, *, fails: bool = False) -> str:
        """Run commands of a page on one machine; what they said. Raises `AssertionError`."""
        done = subprocess.run(
            ["bash", "-c", f"set -eu -o pipefail\n{self.there(text, machine)}"],
            cwd=self.desk,
            env=self._environment(machine),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert (done.returncode != 0) is fails, f"{text}\n{done.returncode}\n{done.stdout}"
        return done.stdout

    def begin(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        """A program on the operator's machine that goes on."""
        return subprocess.Popen(
            words,
            cwd=self.desk,
            env=self._environment(0),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def until(self, text: str, holds: Callable[[str], bool], timeout_s: float = 60.0) -> str:
        """Run a command again and again until its answer is so. Raises `AssertionError`."""
        end_s = time.monotonic() + timeout_s
        while not holds(said := self.run(text)):
            assert time.monotonic() < end_s, f"{text} says for {timeout_s:g} s:\n{said}"
            # Nothing in this process tells of a change in the others.
            time.sleep(_POLL_S)
        return said

    def kill(self, machine: int) -> None:
        """Pull the plug: `kill -9` of all processes of a machine."""
        for pid in self._pids(machine):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.tree(machine) / "pid").unlink(missing_ok=True)

    def close(self) -> None:
        """Stop whatever runs."""
        for machine in NODES:
            self.kill(machine)

    def _pids(self, machine: int) -> list[int]:
        mark = f"MACHINE={self.tree(machine)}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def _environment(self, machine: int) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HERDBOOK_", "PYTEST_", "XDG_CONFIG"))
        }
        path = (str(self._programs), str(Path(sys.executable).parent), os.environ["PATH"])
        mine = {
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.tree(machine)),
            "MACHINE": str(self.tree(machine)),
            "EXEC_START": self.there(exec_start(), machine),
            "COLUMNS": "160",
            "TERM": "dumb",
        }
        more = {name: value.format(tree=self.tree(machine)) for name, value in self.more.items()}
        return kept | mine | more


def exec_start() -> str:
    """The command of the unit."""
    [found] = re.findall(r"^ExecStart=(.+)$", _UNIT.read_text(), re.MULTILINE)
    return str(found)
