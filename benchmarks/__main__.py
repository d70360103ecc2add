"""`python -m benchmarks SUBJECT`: measure, beside the machine's own limit.

Invariants:
- With --json standard output holds one JSON object per scenario on a line of its own, nothing else.
- Progress goes to standard error.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import blobit, blobs, broker, herd, ledger, replica, scale, spark
from benchmarks.result import Result, show
from benchmarks.setting import Setting, note

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per scenario.")]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller sizes; a minute in all.")]
Only = Annotated[list[str] | None, typer.Option(help="Run only this scenario. May be repeated.")]
Folder = Annotated[
    Path, typer.Option(help="Measure on the disk of this folder. Default: the temporary folder.")
]
HERE = Path(tempfile.gettempdir())


@app.command("ledger")
def measure_ledger(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Appends, reads, tailing and memory of the ledger layer."""
    _measure(ledger.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("blobs")
def measure_blobs(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Objects of 35 KiB and of 1 MiB, put and got."""
    _measure(blobs.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("blobit")
def measure_blobit(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Objects with three copies: 64 KiB and 64 MiB by id, 4 KiB by name, listing."""
    _measure(blobit.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("replica")
def measure_replica(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Commands of the example's replicated map, and what a snapshot costs them."""
    _measure(replica.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("herd")
def measure_herd(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Tables: writes and reads beside SQLite (and PostgreSQL), checkpoints, opening."""
    _measure(herd.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("broker")
def measure_broker(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Tasks: what the next one costs to find, and what a flood delays."""
    _measure(broker.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("spark")
def measure_spark(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """Tables and objects read and written by Spark, beside the same in local Parquet."""
    _measure(spark.SCENARIOS, as_json, only, Setting(folder, quick))


@app.command("scale")
def measure_scale(
    as_json: AsJson = False, quick: Quick = False, only: Only = None, folder: Folder = HERE
) -> None:
    """2,000 idle tablespaces on three nodes, beside two. Takes an hour; needs Java."""
    _measure(scale.SCENARIOS, as_json, only, Setting(folder, quick))


def _measure(
    scenarios: dict[str, ledger.Scenario], as_json: bool, only: list[str] | None, setting: Setting
) -> None:
    chosen = _chosen(scenarios, only or [])
    setting.folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for name, scenario in scenarios.items():
        if name not in chosen:
            continue
        note(f"{name} ...")
        for result in scenario(setting):
            results.append(result)
            if as_json:
                print(result.as_json(), flush=True)
    if not as_json:
        show(results)


def _chosen(scenarios: Iterable[str], only: Sequence[str]) -> set[str]:
    """The scenarios that are asked for: by their names, or by those of what they measure."""
    known = list(scenarios)
    chosen: set[str] = set()
    for wanted in only or known:
        of_it = [
            name
            for name in known
            if wanted == name or wanted.startswith(f"{name}-") or wanted.endswith(f"-{name}")
        ]
        if not of_it:
            raise typer.BadParameter(f"{wanted}; known are {', '.join(known)}")
        chosen.add(max(of_it, key=len))
    return chosen


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
