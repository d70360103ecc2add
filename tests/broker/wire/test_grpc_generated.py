"""Generated modules are those of the file in `proto/`, and nothing loads gRPC before its use.

    python -m grpc_tools.protoc -I broker/wire/grpc_generated=proto \\
        --python_out=. --pyi_out=. broker/wire/grpc_generated/broker.proto
"""

import subprocess
import sys
from pathlib import Path

import pytest

from broker.connection import Ended
from broker.wire.grpc_generated import broker_pb2
from broker.wire.grpc_service import SERVICE
from broker.wire.task_messages import same_numbers

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "broker/wire/grpc_generated"


@pytest.mark.parametrize("name", ["broker_pb2.py", "broker_pb2.pyi"])
def test_the_generated_modules_are_those_of_the_proto_file(name: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *("-I", f"{FOLDER}=proto", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
        f"{FOLDER}/broker.proto",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / FOLDER / name).read_text() == (ROOT / FOLDER / name).read_text()


def test_a_broker_without_the_wire_loads_no_grpc() -> None:
    code = (
        "import broker.service, broker.wire.grpc_server, broker.wire.grpc_port, sys; "
        "heavy = ('grpc', 'google.protobuf', 'pyarrow', 'duckdb', 'kazoo'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_a_child_process_loads_neither_the_engine_nor_the_wire() -> None:
    code = (
        "import broker.worker.child, sys; "
        "print([name for name in ('engine', 'grpc', 'broker.service') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_numbers_mean_the_same_on_every_wire() -> None:
    assert same_numbers(broker_pb2)
    assert {int(each) for each in Ended} | {0} == set(broker_pb2.AttemptEnd.values())
    assert broker_pb2.DESCRIPTOR.services_by_name["Broker"].full_name == SERVICE
