"""The page of all commands, made of the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from tests.docs.commands import all_commands

_HEAD: Final = """# Commands

All of `herdbook`, as `--help` tells it. This page is made by `make docs`.

Every command finds its store by the same rule: what it is told (`--url`, or an argument), else
`HERDBOOK_URL`, else `url` in `~/.config/herdbook/config.toml`. With `--json` standard output is one
JSON object a line and nothing else; progress and errors go to standard error, an error in one line
with its remedy.

| status | meaning |
| --- | --- |
| 0 | it worked |
| 1 | it did not, and why is on standard error; or a check found something |
| 2 | the call was wrong, or the store does not exist |
"""


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_section(path, command) for path, command in _listed())


def _listed() -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, command in all_commands().items():
        if path:
            yield path, command


def _section(path: tuple[str, ...], command: Any) -> str:
    name = " ".join(("herdbook", *path))
    parts = [f"\n{'#' * min(4, 1 + len(path))} {name}\n", _plain(command.help or "")]
    context = typer.Context(command, info_name=name)
    table = _table(command, context)
    # A group may do something itself, and then it has options.
    if table or not hasattr(command, "commands"):
        usage = " ".join(command.collect_usage_pieces(context))
        parts += [f"```text\n{name} {usage}\n```\n", table]
    parts.append(_examples(command.epilog or ""))
    return "\n".join(part for part in parts if part)


def _plain(text: str) -> str:
    """A help text as paragraphs; marks of its own layout go."""
    return re.sub(r"\n*\Z", "\n", _escaped(text.replace("\b", "").strip()))


def _table(command: Any, context: Any) -> str:
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None or parameter.name == "help":
            continue
        said, meaning = (" ".join(each.replace("\b", "").split()) for each in record)
        # A bar within code ends a cell here and none there.
        rows.append(f"| `{said.replace('|', '/')}` | {_escaped(meaning).replace('|', '/')} |")
    return "\n".join(["| | |", "| --- | --- |", *rows, ""]) if rows else ""


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*") if "`" not in text else text


def _examples(epilog: str) -> str:
    found = re.search(r"Examples?:\n((?:  .*\n?)+)", epilog)
    if found is None:
        return ""
    lines = [line.strip() for line in found[1].splitlines()]
    return "```sh\n" + "\n".join(lines) + "\n```\n"
