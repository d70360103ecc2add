"""Generated modules are those of the files in `proto/`, and nothing loads gRPC before its use.

    python -m grpc_tools.protoc -I engine/transport/grpc_generated=proto \\
        --python_out=. --pyi_out=. engine/transport/grpc_generated/bookie.proto
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.transport import messages
from engine.transport.contract import Status
from engine.transport.grpc_generated import bookie_pb2
from engine.transport.grpc_service import SERVICE

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "engine/transport/grpc_generated"
PROTO = (ROOT / "proto" / "bookie.proto").read_text()


@pytest.mark.parametrize(
    "name", ["bookie_pb2.py", "bookie_pb2.pyi", "access_pb2.py", "access_pb2.pyi"]
)
def test_the_generated_modules_are_those_of_the_proto_file(name: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *("-I", f"{FOLDER}=proto", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
        f"{FOLDER}/{name.partition('_')[0]}.proto",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / FOLDER / name).read_text() == (ROOT / FOLDER / name).read_text()


@pytest.mark.parametrize(
    "module",
    ["engine", "engine.transport.grpc_client", "engine.transport.grpc_server", "herdbook.cli.main"],
)
def test_importing_loads_no_grpc(module: str) -> None:
    code = (
        f"import {module}, sys; "
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_statuses_have_the_same_numbers_on_every_wire() -> None:
    generated = dict(bookie_pb2.Status.items())
    assert generated == {f"STATUS_{status.name}": int(status) for status in Status}


def test_the_proto_file_tells_the_layout_of_a_packed_run() -> None:
    rows = re.findall(r"^  //   (\d+) +(\d+) +[iu]\d\d: ", PROTO, re.MULTILINE)
    ends = [int(at) + int(size) for at, size in rows]
    assert [int(at) for at, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == messages._ROW.size and f"a row of {ends[-1]} bytes" in PROTO


def test_every_field_and_every_call_is_explained() -> None:
    for message in re.findall(r"^message \w+ \{\n(.*?)^\}", PROTO, re.MULTILINE | re.DOTALL):
        commented = False
        for line in message.splitlines():
            stripped = line.strip()
            if stripped.startswith("//"):
                commented = True
            elif not stripped:
                commented = False
            elif re.search(r"= \d+;", stripped):
                assert commented, stripped
    assert bookie_pb2.DESCRIPTOR.services_by_name["Bookie"].full_name == SERVICE
