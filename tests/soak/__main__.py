"""The full sizes: every acceptance figure as large as it is promised. Writes `docs/soak.md`.

usage: python -m tests.soak [--only NAME]

It takes about six hours on two quiet cores. What a part printed last stands in the report with
the command that repeats it; the exit code is 1 if any part failed.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "docs" / "soak.md"


@dataclass(frozen=True, slots=True)
class Part:
    """One command, how many of its last lines are worth keeping, and what it may need set."""

    name: str
    title: str
    arguments: tuple[str, ...]
    lines: int
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> str:
        """As a reader would type it."""
        settings = "".join(f"{name}={value} " for name, value in self.environment)
        return f"{settings}python {' '.join(self.arguments)}"


PARTS: tuple[Part, ...] = (
    Part(
        "leadership",
        "Every order of all messages of an election, three attempts deep",
        ("-m", "tests.leadership", "--large"),
        lines=10,
    ),
    Part(
        "crash-matrix",
        "Three hundred rounds of the crash matrix: every way to run, killed and started again",
        ("-m", "tests.crash_matrix", "--rounds", "300", "--jobs", "1"),
        lines=40,
    ),
    Part(
        "clocks",
        "Clocks of three nodes jump by an hour while programs write (needs libfaketime)",
        ("-m", "tests.operate.clocks"),
        lines=10,
    ),
    Part(
        "zookeeper-away",
        "ZooKeeper stands still for a minute while tables, objects and tasks are used",
        ("-m", "pytest", "-q", "-s", "tests/operate/test_zookeeper_away.py"),
        lines=2,
        environment=(("HERDBOOK_ZOOKEEPER_AWAY_S", "60"),),
    ),
    Part(
        "scale",
        "Two thousand idle tablespaces on three nodes, beside two",
        ("-m", "benchmarks", "scale", "--json"),
        lines=20,
    ),
    Part(
        "attacks",
        "A hundred thousand hostile statements, none past its limits",
        ("-m", "tests.attack.hostile", "--count", "100000", "--seed", "100"),
        lines=3,
    ),
    Part(
        "floods",
        "Reads by key beside a user who floods a node with one statement after the other",
        ("-m", "tests.attack.flood"),
        lines=30,
    ),
    Part(
        "simulation",
        "Two thousand seeds of the simulation",
        ("-m", "tests.simulation", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "log-simulation",
        "Two thousand seeds of logs whose leaders depose each other",
        ("-m", "tests.simulation", "--log", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "replica-simulation",
        "Two thousand seeds of three replicas on five bookies",
        ("-m", "tests.simulation", "--replicas", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "herd-simulation",
        "Two thousand seeds of three replicas of a tablespace: transfers, lists, leaders killed",
        ("-m", "tests.simulation", "--herd", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "group-simulation",
        "Two thousand seeds of five nodes with two hundred tablespaces each",
        ("-m", "tests.simulation", "--groups", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "herd-kills",
        "A hundred owners of tables killed with kill -9 under load",
        ("-m", "pytest", "-q", "-p", "no:randomly", "tests/herd/test_kill.py"),
        lines=1,
        environment=(("HERDBOOK_HERD_KILLS", "100"), ("HERDBOOK_TEST_DEADLINE_S", "1800")),
    ),
    Part("mutants", "Every mutant is killed", ("-m", "tests.mutants"), lines=60),
    Part(
        "kills",
        "A hundred owners killed with kill -9 in the middle of appends",
        ("-m", "pytest", "-q", "-p", "no:randomly", "tests/engine/cluster/test_kill.py"),
        lines=1,
        environment=(("HERDBOOK_KILLS", "100"),),
    ),
    Part(
        "properties",
        "Properties over other examples than those of every run",
        (
            *("-m", "pytest", "-q", "--hypothesis-profile=soak"),
            *("tests/engine/ledger/test_quorum.py", "tests/engine/test_run.py"),
            *("tests/engine/transport/test_frames.py", "tests/blobit/test_object_id.py"),
        ),
        lines=1,
    ),
    Part(
        "ledger",
        "The ledger beside the raw disk, ten million adds among it",
        ("-m", "benchmarks", "ledger", "--json"),
        lines=40,
    ),
    Part(
        "cluster",
        "Five bookies and ZooKeeper under kills, cuts, pauses, full and wiped disks",
        ("-m", "pytest", "-q", "-p", "no:randomly", "-s", "tests/acceptance"),
        lines=3,
        environment=(("HERDBOOK_ACCEPTANCE", "full"), ("HERDBOOK_TEST_DEADLINE_S", "1800")),
    ),
    Part(
        "replica",
        "A replica: proposals beside the log alone, and beside a snapshot of a million keys",
        ("-m", "benchmarks", "replica", "--json"),
        lines=60,
    ),
    Part(
        "herd",
        "Tables beside SQLite, checkpoints under load, ten million rows",
        ("-m", "benchmarks", "herd", "--json"),
        lines=40,
    ),
    Part(
        "herd-differential",
        "Twenty thousand statements, the same in SQLite and DuckDB",
        ("-m", "tests.herd.differential", "--statements", "20000"),
        lines=5,
    ),
    Part("blobs", "Blobs", ("-m", "benchmarks", "blobs", "--json"), lines=10),
    Part(
        "broker-simulation",
        "Two thousand seeds of three brokers and five workers, with clocks that jump",
        ("-m", "tests.simulation", "--broker", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "broker",
        "Tasks: end to end, submits, rounds of assignments at a hundred thousand and two millions",
        ("-m", "benchmarks", "broker", "--json"),
        lines=60,
    ),
    Part(
        "blobit-figures",
        "Objects of three sizes in three copies, by id and by name, beside the raw disk",
        ("-m", "benchmarks", "blobit", "--json"),
        lines=60,
    ),
    Part(
        "blobit",
        "Two hundred thousand random operations on buckets, the same as a dictionary says",
        ("-m", "tests.blobit.oracle", "--operations", "200000"),
        lines=5,
    ),
    Part(
        "blobs-simulation",
        "Two thousand seeds of buckets under collection, compaction, pauses and deaths",
        ("-m", "tests.simulation", "--blobs", "--seeds", "2000", "--jobs", "2"),
        lines=5,
    ),
    Part(
        "blobit-kills",
        "Fifty processes killed with kill -9 in the middle of changes to a bucket",
        ("-m", "pytest", "-q", "-p", "no:randomly", "tests/blobit/oracle/test_kill.py"),
        lines=1,
        environment=(("HERDBOOK_BLOB_KILLS", "50"), ("HERDBOOK_TEST_DEADLINE_S", "1800")),
    ),
    Part(
        "blobit-stream",
        "A stream of 5 GiB in and out of a bucket in at most 100 MiB of memory",
        ("-m", "pytest", "-q", "-s", "tests/blobit/data/test_streaming_memory.py"),
        lines=4,
        environment=(
            ("HERDBOOK_BLOB_STREAM_MIB", "5120"),
            ("HERDBOOK_TEST_DEADLINE_S", "1800"),
        ),
    ),
    Part(
        "spark-figures",
        "Spark reads and writes five million rows, and reads 2 GiB of objects, beside Parquet",
        ("-m", "benchmarks", "spark", "--json"),
        lines=60,
    ),
    Part(
        "spark",
        "Spark: a hundred thousand changes under ten kills, sums of a million rows while they move",
        (
            *("-m", "pytest", "-q", "-p", "no:randomly"),
            *("tests/spark/streams", "tests/spark/reading"),
        ),
        lines=1,
        environment=(("HERDBOOK_ACCEPTANCE", "full"), ("HERDBOOK_TEST_DEADLINE_S", "1800")),
    ),
)


def main() -> int:
    """Run the parts and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[part.name for part in PARTS], action="append")
    chosen = parser.parse_args().only or [part.name for part in PARTS]
    sections = earlier(REPORT.read_text() if REPORT.exists() else "")
    failed: list[str] = []
    for part in PARTS:
        if part.name in chosen:
            passed, sections[part.title] = run(part)
            if not passed:
                failed.append(part.name)
    kept = [sections[part.title] for part in PARTS if part.title in sections]
    REPORT.write_text(report(kept))
    print(f"written: {REPORT.relative_to(ROOT)}" + (f"; FAILED: {failed}" if failed else ""))
    return 1 if failed else 0


def run(part: Part) -> tuple[bool, str]:
    """Run one part; tell whether it passed, and its section of the report."""
    print(f"== {part.title}\n   {part.command}", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *part.arguments],
        cwd=ROOT,
        env={**os.environ, **dict(part.environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.monotonic() - start
    told = done.stdout.strip().splitlines()
    if "--json" in part.arguments and not done.returncode:
        # Beside its figures a benchmark says how far it is, and so do the programs that it runs.
        told = [line for line in told if line.startswith("{")]
    kept = told[-part.lines :]
    print("\n".join(kept), flush=True)
    verdict = "passed" if done.returncode == 0 else f"FAILED with exit code {done.returncode}"
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    when = f"{date.today().isoformat()}, {machine}"
    heading = f"## {part.title}\n\n`{part.command}`\n\n{when}: {verdict} in {seconds:.0f} s.\n"
    return done.returncode == 0, heading + "\n```text\n" + "\n".join(kept) + "\n```\n"


def earlier(document: str) -> dict[str, str]:
    """The sections of a report by their titles: parts not run now keep their last figures."""
    sections = document.split("\n## ")[1:]
    return {section.splitlines()[0]: f"## {section.rstrip()}\n" for section in sections}


def report(sections: Sequence[str]) -> str:
    """The whole document."""
    head = (
        "# The last soak\n\n"
        "Written by `make soak`. The same figures at small sizes are part of `make test`.\n"
    )
    return "\n".join([head, *sections])


if __name__ == "__main__":
    sys.exit(main())
