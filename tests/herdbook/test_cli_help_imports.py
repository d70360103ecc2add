"""Help is quick: a command's help loads nothing of what the command works with."""

import subprocess
import sys

STORE_CODE = (
    "blobit.blobs",
    "blobit.bucket",
    "broker.service",
    "engine.bookie",
    "engine.cluster",
    "engine.ledger.client",
    "engine.repair.node",
    "herd.connection",
    "herd.tablespace",
    "herdbook.archive",
    "herdbook.book",
    "duckdb",
    "grpc",
    "kazoo",
    "pyarrow",
    "pyspark",
    "rocksdict",
)


def test_the_help_of_no_command_loads_what_stores_are_made_of() -> None:
    code = (
        "import sys; from typer.main import get_command; from herdbook.cli.late import tree;"
        "from herdbook.cli.main import app;"
        "print(sum(bool(each.get_help(each.make_context('moo', [], resilient_parsing=True)))"
        " for _, each in tree(get_command(app))));"
        f"print(*{set(STORE_CODE)} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    helps, loaded = ended.stdout.splitlines()
    assert int(helps) > 100 and loaded.split() == []


def test_the_public_names_of_objects_are_found_when_they_are_used() -> None:
    code = (
        "import sys, blobit; before = 'blobit.blobs' in sys.modules;"
        "from blobit import *; print(before, 'blobit.blobs' in sys.modules, AsyncBlobs.__module__)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True", "blobit.blobs"]
