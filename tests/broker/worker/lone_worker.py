"""A process that runs a pool and dies when it is told to: `python -m ... FOLDER`.

Its tasks say in files of the folder which processes there are.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from broker.connection import Run
from broker.worker.pool import Pool, PoolSettings
from tests.broker.worker.looking import until

MODULE = "tests.broker.worker.functions"


def _written(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


async def main(folder: Path) -> None:
    """Run one of each, and stay."""
    pool = Pool(PoolSettings((MODULE,), processes=2, places=2), lambda ended: None)
    await pool.start()
    kinds = ("leave_children", "held_in_a_call")
    for number, kind in enumerate(kinds):
        payload = msgspec.json.encode({"note": str(folder / kind)})
        pool.run([Run(number + 1, 1, "elsa", kind, payload)])
    await until(lambda: all(map(_written, (folder / kind for kind in kinds))))
    assert pool.watch._process is not None
    (folder / "watcher").write_text(f"{pool.watch._process.pid}\n")
    (folder / "ready").touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
