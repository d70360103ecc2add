"""Every example of docs/tasks.md runs, and every option in it is one of the command's."""

from pathlib import Path

from tests.broker.pages import examples_run, options_in, options_of, text_of

TEXT = text_of("tasks.md")


def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    done = examples_run(TEXT, tmp_path, at_least=9)
    assert done.returncode == 0, done.stderr
    assert "cancelled" in done.stdout


def test_every_option_of_the_page_is_one_of_the_worker() -> None:
    named, known = options_in(TEXT), options_of("worker")
    assert named and named <= known, named - known
