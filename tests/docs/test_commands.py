"""Every command of herdbook that a document shows is one, and so is every option of it."""

import re
import shlex

import pytest

from tests.docs.blocks import DOCUMENTS, SHELL, Block, blocks_in, blocks_of
from tests.docs.commands import all_commands, unknown_in

_END = re.compile(r"^(;|&&?|\|\|?|>+|<|\d?>&?\d?|#.*|\))$")
_CALL = re.compile(r"(?:^|[;&|(]\s*|\$ |\bdo\s+|ExecStart=\S*/)(herdbook )", re.MULTILINE)


def calls_in(block: Block) -> list[list[str]]:
    """The words behind each `herdbook` of a block of commands."""
    text = block.text.replace("\\\n", " ")
    calls = []
    for match in _CALL.finditer(text):
        line = text[match.end() :].partition("\n")[0]
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if _END.match(word):
                break
            words.append(word)
        calls.append(words)
    return calls


def wrong_in(blocks: list[Block]) -> list[str]:
    """Where blocks name what is not there."""
    return [
        f"{block.place}: herdbook {' '.join(words)}: {unknown}"
        for block in blocks
        if block.kind in SHELL | {""}
        for words in calls_in(block)
        for unknown in unknown_in(words)
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_and_option_of_a_document_is_one(document: str) -> None:
    assert wrong_in(blocks_of(document)) == []


def test_what_is_not_there_is_noticed() -> None:
    shown = "```sh\nherdbook blob ls a --long; herdbook blob quack &\nherdbook moo --far\n```\n"
    wrong = wrong_in(blocks_in(shown, "page"))
    assert [line.rpartition(": ")[2] for line in wrong] == ["quack", "moo"]
    assert unknown_in(["blob", "ls", "cows", "--quack=3", "--json"]) == ["--quack"]


def test_the_whole_tree_of_commands_is_walked() -> None:
    assert ("task", "rollout", "start") in all_commands() and len(all_commands()) > 60
