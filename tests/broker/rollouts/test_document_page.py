"""Every example of docs/rollouts.md runs, and every command and option in it is one."""

import re
from pathlib import Path

from tests.broker.pages import examples_run, options_in, options_of, text_of

TEXT = text_of("rollouts.md")


def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    done = examples_run(TEXT, tmp_path, at_least=5)
    assert done.returncode == 0, done.stderr


def test_every_command_and_option_of_the_page_is_one() -> None:
    known = options_of("worker") | options_of("task", "serve")
    for command in re.findall(r"herdbook task rollout (\w+)", TEXT):
        known |= options_of("task", "rollout", command)
    named = options_in(TEXT)
    assert named and named <= known, named - known
