"""Somebody who reads a page and does what it says, in a folder of their own.

Invariants:
- Blocks run in the order in which they stand: Python with the names of the blocks before, shells
  with what was exported before and in the folder where the last one ended.
- What a page leaves running is interrupted at its end, as by Ctrl-C, and must end by that.
- The usual url of `herdbook dev` stands for the one that it has printed: others may run one.
"""

import doctest
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.docs.blocks import SHELL, SHOWN, Block, blocks_of

BLOCK_TIMEOUT_S: Final = 150
STOP_TIMEOUT_S: Final = 30
INTERRUPTED: Final = (0, 130, -signal.SIGINT)

_USUAL_URL: Final = "herdbook://127.0.0.1:2181/dev"
_TOLD_URL: Final = re.compile(r"export HERDBOOK_URL=(herdbook://\S+)")
_MODULE: Final = re.compile(r"# ([\w/]+\.(?:py|toml|csv))\n")
_PROMPT: Final = re.compile(
    r"^\$ (?P<command>.*(?:\\\n.*)*)\n(?P<wanted>(?:(?!\$ ).*\n?)*)", re.MULTILINE
)
_PLAIN: Final = re.compile(r"herdbook [^|;&<>$`]*\n")
_SAME: Final = doctest.OutputChecker().check_output
_FLAGS: Final = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Beside:
    """A command that goes on while the page goes on: a server, mostly."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.said: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.said.append(line)
                self._changed.notify_all()
        with self._changed:
            self.said.append("")
            self._changed.notify_all()

    def until(self, words: str) -> None:
        """Wait for its words. Raises `AssertionError` if it ends without them, or takes long."""

        def heard() -> bool:
            return any(words in line for line in self.said) or self.said[-1:] == [""]

        with self._changed:
            self._changed.wait_for(heard, BLOCK_TIMEOUT_S)
            assert any(words in line for line in self.said), "".join(self.said)

    def interrupt(self) -> None:
        """Ctrl-C: it and its children must end by that. Raises `AssertionError`."""
        group = self._process.pid
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGINT)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
            self._process.wait()
            self._listener.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
        assert status in INTERRUPTED, (status, "".join(self.said))


class Reader:
    """Reads pages in one folder. `quick`: what `$ herdbook ...` says is asked of one process."""

    def __init__(self, folder: Path, *, quick: bool = False) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.home = folder / "home"
        self.home.mkdir()
        self.ran = 0
        """Blocks that were run so far."""
        self._quick = quick
        self._url = _USUAL_URL
        self._state = folder / "shell"
        self._state.write_text(f"cd '{self.folder}'\n")
        self._errors = (folder / "errors").open("a+")
        self._python: subprocess.Popen[str] | None = None
        self._beside: list[Beside] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._python is not None:
                self._python.communicate(timeout=STOP_TIMEOUT_S)
            while self._beside:
                self._beside.pop().interrupt()
        finally:
            if self._python is not None:
                self._python.kill()
                self._python.wait()
            self._errors.close()

    def read(self, page: str) -> None:
        """Do what a page says. Raises `AssertionError`, which names the block."""
        for block in blocks_of(page):
            self.do(block)

    def do(self, block: Block) -> None:
        """Run one block. Raises `AssertionError`."""
        assert block.kind, f"{block.place}: a block without a language"
        if not block.executed:
            assert block.kind in SHOWN or block.words, f"{block.place}: not run, and no reason"
            return
        self.ran += 1
        block = replace(block, text=block.text.replace(_USUAL_URL, self._url))
        module = _MODULE.match(block.text)
        if module is not None and block.kind not in SHELL:
            (self.folder / module[1]).write_text(block.text)
        elif block.kind == "python":
            self._ask({"kind": "python", "text": block.text, "place": block.place})
        elif block.note == "beside":
            command = f". '{self._state}'; exec {block.text.strip()}"
            beside = Beside(["bash", "-c", command], self.folder, self._environment())
            self._beside.append(beside)
            beside.until(block.words)
            told = _TOLD_URL.search("".join(beside.said))
            self._url = told[1] if told is not None else self._url
        elif block.kind == "console":
            self._compare(block)
        else:
            self._run(block)

    def _run(self, block: Block) -> None:
        """Commands whose words do not matter: all at once, or where it is quick line by line."""
        text = block.text.replace("\\\n", " ")
        lines = text.splitlines(keepends=True) if self._quick and "<<" not in text else [block.text]
        for line in lines:
            if self._quick and _PLAIN.fullmatch(line):
                said = self._ask({"kind": "command", "text": line, "place": block.place})
                ended = re.search(r"^\[(\d+)\]$", said, re.MULTILINE)
                status = int(ended[1]) if ended is not None else 0
            else:
                status, said = self._shell(line)
            assert (status != 0) is (block.note == "fails"), f"{block.place}\n{line}\n{said}"

    def _compare(self, block: Block) -> None:
        for match in _PROMPT.finditer(block.text):
            command, wanted = match["command"], match["wanted"]
            if self._quick and re.match(r"(echo .* \| )?herdbook ", command):
                said = self._ask({"kind": "command", "text": command, "place": block.place})
            else:
                status, said = self._shell(command)
                said += f"[{status}]\n" if status else ""
            assert _SAME(wanted, said, _FLAGS), f"{block.place}\n$ {command}\n{said}"

    def _shell(self, text: str) -> tuple[int, str]:
        keep = f"{{ export -p; echo \"cd '$PWD'\"; }} > '{self._state}'"
        script = f". '{self._state}'\nset -aeu -o pipefail\n{text}\nset +aeu\n{keep}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout

    def _ask(self, request: dict[str, str]) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("interpreter.py"))],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        assert self._python.stdin is not None and self._python.stdout is not None
        self._python.stdin.write(json.dumps(request) + "\n")
        self._python.stdin.flush()
        answered, _, _ = select.select([self._python.stdout], [], [], BLOCK_TIMEOUT_S)
        line = self._python.stdout.readline() if answered else ""
        self._errors.seek(0)
        assert line, f"{request['place']}\n{self._errors.read()}"
        answer: dict[str, str] = json.loads(line)
        assert "failed" not in answer, f"{request['place']}\n{answer.get('failed')}"
        return answer["said"]

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HERDBOOK_", "PYTEST_", "XDG_CONFIG", "PYTHONPATH"))
        }
        mine = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "HOME": str(self.home),
            "TERM": "dumb",
            "COLUMNS": "100",
        }
        if self._quick:
            mine["HERDBOOK_URL"] = "./data"
        return kept | mine
