"""The clocks of machines of a cluster jump by an hour while programs write: a part of the soak.

    python -m tests.operate.clocks

It needs libfaketime (Debian: `apt-get install faketime`), which gives each machine's processes a
wall clock of their own. What `make test` has of this is in virtual time and by injected clocks:
`tests/engine/ledger/test_cluster_time.py`, `tests/broker/service/test_wrong_clocks.py` and the
seeds of brokers whose clocks jump.
"""

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from herdbook.zookeeper_server import ZooKeeperServer
from tests.operate.machines import NODES, Machines
from tests.operate.test_pages import Load, follow_new

LIBRARIES: Final = "*/faketime/libfaketime.so.1"
OFFSETS: Final = "clock"
HOUR_S: Final = 3_600
HOURS_12: Final = 12
LASTS_S: Final = 10.0
"""How long the load goes on after each jump: longer than any lease."""
LOOKED_AT: Final = 1_000
"""So many of the newest are looked for, and some of those before."""
JUMPS: Final[tuple[tuple[str, dict[str, int]], ...]] = (
    ("the leader's clock is an hour ahead", {"leader": HOUR_S}),
    ("the leader's clock is an hour behind", {"leader": -HOUR_S}),
    ("a follower's clock is an hour ahead", {"follower": HOUR_S}),
    ("a follower's clock is an hour behind", {"follower": -HOUR_S}),
    ("two clocks are two hours apart", {"leader": HOUR_S, "follower": -HOUR_S}),
    ("all clocks are right again", {}),
)


def library() -> Path:
    """The library that gives a process another wall clock. Raises `SystemExit`."""
    found = sorted(Path("/usr/lib").glob(LIBRARIES))
    if not found:
        sys.exit("libfaketime is missing: install it (Debian: apt-get install faketime)")
    return found[0]


class Clocks:
    """The wall clock of each machine, in seconds ahead of the real one."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        machines.more = {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": f"{{tree}}/{OFFSETS}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
        }
        for number in (0, *NODES):
            self.set(number, 0)

    def set(self, machine: int, ahead_s: int) -> None:
        """Set one, as an operator or a broken source of time does."""
        (self._machines.tree(machine) / OFFSETS).write_text(f"{ahead_s:+d}")


def leader_of(machines: Machines) -> int:
    """The machine that leads the tablespace `default`."""

    def leaders(said: str) -> list[int]:
        [space] = [each for each in map(json.loads, said.splitlines()) if each["name"] == "default"]
        at = space["leader_address"]
        return [number for number in NODES if f"{machines.address(number)}:" in at]

    said = machines.until("herdbook herd tablespaces --json", lambda said: bool(leaders(said)))
    return leaders(said)[0]


def judge(machines: Machines, clocks: Clocks) -> int:
    """Run all jumps under one load; how much was looked for. Raises `AssertionError`."""
    limit_ms = HOURS_12 * HOUR_S * 1_000
    said = machines.run(f"herdbook task submit patient --at-most-once --timeout-ms {limit_ms}")
    [task] = re.findall(r"^\d+$", said, re.MULTILINE)
    with Load(machines) as load:
        for title, ahead in JUMPS:
            leader = leader_of(machines)
            follower = next(number for number in NODES if number != leader)
            for number in NODES:
                role = {leader: "leader", follower: "follower"}.get(number, "")
                clocks.set(number, ahead.get(role, 0))
            time.sleep(LASTS_S)
            shown = machines.run(f"herdbook task show {task}")
            assert "waiting" in shown, f"{title}: its deadline is hours away\n{shown}"
            print(f"{title}: machine {leader} led", flush=True)
    looked_at = load.judged(LOOKED_AT)
    told = [
        number
        for number in NODES
        if "server differ by" in (machines.tree(number) / "journal").read_text()
    ]
    assert told, "no machine told that its clock is wrong"
    for number in NODES:
        assert "Traceback" not in (machines.tree(number) / "journal").read_text()
    print(f"{looked_at} looked for, none lost; machines {told} told of their clocks")
    return looked_at


def main() -> None:
    """Make a cluster by the page, and let its clocks jump."""
    with tempfile.TemporaryDirectory() as folder, ZooKeeperServer(Path(folder) / "zk") as zookeeper:
        (Path(folder) / "machines").mkdir()
        machines = Machines(Path(folder) / "machines", zookeeper.hosts)
        try:
            clocks = Clocks(machines)
            follow_new(machines)
            assert judge(machines, clocks) > 0
        finally:
            machines.close()


if __name__ == "__main__":
    main()
