"""`systemctl` of one machine of a test. Its only unit is a node, of type notify."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

READY_S: Final = 300.0
STOP_S: Final = 90.0
"""As long as the unit allows."""


def main() -> int:
    """Do what the words say: they start the unit, stop it, or neither. Returns the exit status."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    now = words[0] in ("start", "stop") or "--now" in sys.argv
    if not now:
        return 0
    machine = Path(os.environ["MACHINE"])
    return _start(machine) if words[0] in ("start", "enable", "unmask") else _stop(machine)


def _start(machine: Path) -> int:
    told = machine / "notify"
    told.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind(str(told))
        ready.settimeout(0.2)
        with (machine / "journal").open("ab") as journal:
            process = subprocess.Popen(
                shlex.split(os.environ["EXEC_START"]),
                stdin=subprocess.DEVNULL,
                stdout=journal,
                stderr=journal,
                env=os.environ | {"NOTIFY_SOCKET": str(told)},
                start_new_session=True,
            )
        (machine / "pid").write_text(str(process.pid))
        end_s = time.monotonic() + READY_S
        while process.poll() is None and time.monotonic() < end_s:
            with suppress(TimeoutError):
                if b"READY=1" in ready.recv(4_096):
                    return 0
    print((machine / "journal").read_text()[-3_000:])
    return 1


def _stop(machine: Path) -> int:
    """SIGTERM to the first process alone, which ends the others."""
    pid = int((machine / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + STOP_S
    while _runs(pid):
        if time.monotonic() > end_s:
            print(f"it did not stop within {STOP_S:g} s")
            return 1
        # It is not our child: nobody tells us of its end.
        time.sleep(0.05)
    (machine / "pid").unlink()
    return 0


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
