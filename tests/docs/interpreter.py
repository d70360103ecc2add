"""The Python of a page's reader: a process that runs block after block with the same names.

Requests and answers are lines of JSON on its standard input and output. What the blocks print
goes into the answers; what their child processes print goes to standard error.
"""

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import json
import os
import shlex
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def execute(text: str, place: str, names: dict[str, Any]) -> str:
    """Run a block as a module's body; it may use `await`, as a notebook's cell may."""
    code = compile(text, place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(result)
    return printed.getvalue()


def compare(text: str, place: str, names: dict[str, Any]) -> str:
    """Run a block of prompts and compare what it shows. Raises `AssertionError`."""
    test = doctest.DocTestParser().get_doctest(text, names, place, place, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=_FLAGS)
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    if runner.failures:
        raise AssertionError("".join(said))
    return ""


def command(text: str) -> str:
    """A command of herdbook, in this process: what it says, and its status if that is not 0."""
    from typer.testing import CliRunner

    from herdbook.cli.main import app

    before, _, after = text.rpartition(" | ")
    typed = " ".join(shlex.split(before)[1:]) + "\n" if before else None
    answer = CliRunner().invoke(app, shlex.split(after, comments=True)[1:], input=typed)
    if answer.exception is not None and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.output + (f"[{answer.exit_code}]\n" if answer.exit_code else "")


def answer(request: dict[str, str], names: dict[str, Any]) -> dict[str, str]:
    """What became of a request."""
    try:
        if request["kind"] == "command":
            said = command(request["text"])
        elif request["text"].startswith(">>>"):
            said = compare(request["text"], request["place"], names)
        else:
            said = execute(request["text"], request["place"], names)
    except BaseException:
        return {"failed": traceback.format_exc()}
    return {"said": said}


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until there are no more requests."""
    module = ModuleType("page")
    sys.modules["page"] = module
    sys.path.insert(0, str(Path.cwd()))
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line), vars(module))) + "\n")
        answers.flush()


if __name__ == "__main__":
    with os.fdopen(os.dup(0)) as requests, os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        serve(requests, answers)
