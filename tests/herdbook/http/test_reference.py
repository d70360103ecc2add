"""Every example of docs/http.md, in its order, against a folder of its own."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.broker.http.test_reference import missing
from tests.herdbook.http.yard import Node

_PAGE: Final = Path(__file__).parents[3] / "docs" / "http.md"
_EXAMPLE: Final = re.compile(r"```http\n(.*?)\n\n(.*?)\n```", re.DOTALL)


def test_every_example_is_answered_as_it_says(tmp_path: Path) -> None:
    examples = _EXAMPLE.findall(_PAGE.read_text())
    assert len(examples) > 10
    with closing(Node(tmp_path / "store")) as node:
        ask = node.open()
        for asked, told in examples:
            head, _, body = asked.partition("\n")
            method, _, path = head.partition(" ")
            status, _, wanted = told.partition("\n")
            reply = ask(method, path, content=body.encode())
            assert reply.status_code == int(status), (method, path, reply.text)
            assert missing(json.loads(wanted), reply.json()) == [], (method, path, reply.text)
