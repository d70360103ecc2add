"""What the pages tell their readers to type works, in the order in which it stands there."""

from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, SHOWN, blocks_in, blocks_of
from tests.docs.reading import Reader

QUICK = (
    "docs/blobs.md",
    "docs/node.md",
    "docs/howto/add-a-user.md",
    "docs/howto/back-up-and-restore.md",
    "docs/howto/folder-into-a-bucket.md",
    "docs/howto/move-from-minio.md",
    "docs/howto/move-from-postgresql.md",
    "docs/howto/run-tasks-fairly.md",
)
"""Pages of many small commands: those of herdbook run in one process."""

PAGES = (
    "README.md",
    "docs/start/tutorial.md",
    "docs/ledgers.md",
    "docs/tasks.md",
    "docs/rollouts.md",
    "docs/howto/embed-in-a-web-service.md",
    "docs/howto/follow-changes.md",
    "docs/howto/move-from-celery.md",
    *QUICK,
)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    with Reader(tmp_path, quick=page in QUICK) as reader:
        reader.read(page)
    assert reader.ran == sum(block.executed for block in blocks_of(page)) > 0


@pytest.mark.parametrize("page", ("README.md", "docs/start/tutorial.md"))
def test_what_a_newcomer_reads_first_is_run_but_for_few_blocks_with_a_reason(page: str) -> None:
    blocks = [block for block in blocks_of(page) if block.kind != "beforehand"]
    left_out = [block.place for block in blocks if not block.executed]
    assert len(blocks) >= 6 and len(left_out) <= 2, left_out


def test_each_program_of_the_tutorial_is_whole_by_itself() -> None:
    programs = [
        block.text
        for block in blocks_of("docs/start/tutorial.md")
        if block.kind == "python" and "herdbook." in block.text
    ]
    assert len(programs) >= 2
    assert [text for text in programs if "import herdbook\n" not in text] == []


def test_every_how_to_with_something_to_run_is_run() -> None:
    elsewhere = {
        "docs/howto/read-a-table-from-spark.md",  # tests/spark has a session
        "docs/howto/rotate-secrets.md",  # tests/herdbook/node/test_rotation.py has a cluster
    }
    to_run = {
        page
        for page in DOCUMENTS
        if page.startswith(("docs/howto/", "docs/start/"))
        and any(block.executed for block in blocks_of(page))
    }
    assert elsewhere < to_run and to_run - elsewhere <= set(PAGES), to_run - set(PAGES)


@pytest.mark.parametrize("page", DOCUMENTS)
def test_every_block_of_every_document_says_what_it_is(page: str) -> None:
    bare = [block.place for block in blocks_of(page) if not block.kind]
    assert bare == [], "write ```text where nothing is run"


def test_a_block_that_fails_or_says_something_else_is_noticed(tmp_path: Path) -> None:
    wrong = {
        "a name that is not there": "```python\nassert cow\n```\n",
        "another answer": "```python\n>>> 1 + 1\n3\n\n```\n",
        "a command that fails": "```sh\nfalse\ntrue\n```\n",
        "a command that ought to fail": "<!-- fails -->\n```sh\ntrue\n```\n",
        "other words": "```console\n$ echo moo\nquack\n```\n",
        "words that never come": "<!-- beside: quack -->\n```sh\necho moo\n```\n",
        "no language": "```\nmoo\n```\n",
        "no reason": "<!-- not run -->\n```sh\nmoo\n```\n",
    }
    with Reader(tmp_path) as reader:
        for what, text in wrong.items():
            [block] = blocks_in(text, "page")
            with pytest.raises(AssertionError):
                reader.do(block)
                pytest.fail(f"{what} is taken")


def test_what_one_block_says_counts_for_the_next(tmp_path: Path) -> None:
    text = (
        "<!-- beforehand: mkdir barn -->\n"
        "```sh\ncd barn; export COW=elsa\n```\n"
        "```console\n$ echo $COW in ${PWD##*/}\nelsa in barn\n```\n"
        "```python\nimport asyncio\n\ncow = await asyncio.sleep(0, 'elsa')\n```\n"
        "```python\n>>> cow\n'elsa'\n\n```\n"
        "<!-- beside: moo -->\n```sh\nsh -c 'echo moo; sleep 60'\n```\n"
    )
    with Reader(tmp_path) as reader:
        for block in blocks_in(text, "page"):
            reader.do(block)
    assert reader.ran == 6


def test_kinds_of_blocks_are_run_or_shown() -> None:
    text = "".join(f"```{kind}\nmoo\n```\n" for kind in ("sh", "python", "toml"))
    assert [block.executed for block in blocks_in(text, "page")] == [True, True, False]
    assert "toml" in SHOWN
