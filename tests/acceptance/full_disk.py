"""A disk of a few megabytes for one machine, to be filled and emptied.

It is a file system in memory, mounted where the machine's folder is; that needs root.
"""

import os
import subprocess

from tests.acceptance.machines import Machine


class SmallDisk:
    """The disk of one machine. Mount it before the machine starts."""

    def __init__(self, machine: Machine, size_mib: int = 96) -> None:
        self.machine = machine
        self._size_mib = size_mib
        self._ballast = machine.folder / "ballast"

    def mount(self) -> None:
        """Put it under the machine's folder."""
        self.machine.folder.mkdir(parents=True)
        options = f"size={self._size_mib}m,mode=700"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.machine.folder)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, (
            f"a small disk for a test cannot be mounted ({result.stderr.strip()}): "
            "run as root, or in a container with CAP_SYS_ADMIN"
        )

    def unmount(self) -> None:
        """Take it away, with all that is on it."""
        subprocess.run(["umount", "-l", str(self.machine.folder)], check=True)

    def fill(self) -> None:
        """Leave no byte."""
        with self._ballast.open("wb") as ballast:
            chunk = bytes(1 << 20)
            try:
                while ballast.write(chunk):
                    ballast.flush()
            except OSError:
                os.truncate(self._ballast, self._ballast.stat().st_size)

    def make_room(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink()
