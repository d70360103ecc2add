"""Opening what is large: a thousand tables, ten million rows; and the memory that they take.

Invariants:
- Every process that is measured is a new one. The first one is killed in the middle of updates, the
  second one opens after that and ends cleanly, the third one opens after that.
- The limit is what is promised: 15 s after a kill, 5 s after a clean stop, 2 GiB.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.herd_updates import SUBJECT
from benchmarks.result import Result
from benchmarks.setting import Setting, note

KILLED_S: Final = 15.0
STOPPED_S: Final = 5.0
MEMORY_MIB: Final = 2_048.0
Measured = dict[str, float]


def open_tables(setting: Setting) -> list[Result]:
    """A tablespace of a thousand tables."""
    count = setting.size(1_000, 5)
    _, killed, stopped = _opened(setting, "fill-tables", count)
    assert killed["tables"] >= count, killed
    return _times("open-1000-tables", killed, stopped)


def open_rows(setting: Setting) -> list[Result]:
    """A tablespace of ten million rows of 100 bytes, and the most memory that it ever took."""
    count = setting.size(10_000_000, 5_000)
    filled, killed, stopped = _opened(setting, "fill-rows", count)
    assert killed["rows"] == stopped["rows"] == count, (killed, stopped)
    note(f"{count:,} rows in {filled['seconds']:.0f} s")
    peak_mib = max(each["peak_mib"] for each in (filled, killed, stopped))
    return [
        *_times("open-ten-million", killed, stopped),
        Result(SUBJECT, "memory-ten-million", round(peak_mib), "MiB", MEMORY_MIB),
    ]


def _times(scenario: str, killed: Measured, stopped: Measured) -> list[Result]:
    return [
        Result(SUBJECT, scenario, round(stopped["seconds"], 3), "s", STOPPED_S),
        Result(SUBJECT, f"{scenario}-killed", round(killed["seconds"], 3), "s", KILLED_S),
    ]


def _opened(setting: Setting, action: str, count: int) -> tuple[Measured, Measured, Measured]:
    with setting.scratch() as folder:
        filled = _killed(action, folder / "data", count)
        return filled, _ended(folder / "data", count), _ended(folder / "data", count)


def _killed(action: str, folder: Path, count: int) -> Measured:
    """Fill, and kill who did while it goes on."""
    with subprocess.Popen(_command(action, folder, count), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        child.kill()
    found: Measured = json.loads(said)
    return found


def _ended(folder: Path, count: int) -> Measured:
    done = subprocess.run(_command("open", folder, count), stdout=subprocess.PIPE, check=True)
    found: Measured = json.loads(done.stdout)
    return found


def _command(action: str, folder: Path, count: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.herd_child", action, str(folder), str(count)]
