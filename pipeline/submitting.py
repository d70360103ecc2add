"""The way from `spark-submit` to a job, whose arguments are those of `herdbook pipeline`.

    spark-submit --master yarn "$(python -c 'import pipeline.usage as job; print(job.__file__)')" \\
        --url herdbook://zookeeper-1:2181/prod

Invariants:
- A job has one set of options, however it is started.
"""

import sys
from collections.abc import Sequence


def submit(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a job as the command does, and end the process with the command's status."""
    # The front door stands above its jobs; only a program's beginning may reach up to it.
    from herdbook.cli.pipeline import app

    given = sys.argv[1:] if arguments is None else arguments
    app([name, *given], prog_name=f"pipeline.{name}")
