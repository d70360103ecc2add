"""Generated modules are those of the files in `proto/`, and nothing loads gRPC before its use.

    python -m grpc_tools.protoc -I herd/wire/grpc_generated=proto \\
        --python_out=. --pyi_out=. herd/wire/grpc_generated/herd.proto
"""

import subprocess
import sys
from pathlib import Path

import pytest

from herd.transaction import Isolation
from herd.wire import messages
from herd.wire.grpc_generated import herd_pb2
from herd.wire.grpc_service import SERVICE

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "herd/wire/grpc_generated"


@pytest.mark.parametrize("name", ["herd_pb2.py", "herd_pb2.pyi"])
def test_the_generated_modules_are_those_of_the_proto_file(name: str, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        *("-I", f"{FOLDER}=proto", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"),
        f"{FOLDER}/herd.proto",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / FOLDER / name).read_text() == (ROOT / FOLDER / name).read_text()


def test_what_needs_no_sql_loads_neither_grpc_nor_what_sql_needs() -> None:
    code = (
        "import herd.store, herd.wire.cluster, herd.wire.grpc_server, herd.wire.framed_server; "
        "import sys; "
        "heavy = ('grpc', 'google.protobuf', 'pyarrow', 'duckdb', 'sqlglot', 'kazoo'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"


def test_numbers_mean_the_same_on_every_wire() -> None:
    assert dict(herd_pb2.Transaction.items()) == {
        "TRANSACTION_NONE": messages.NO_TRANSACTION,
        "TRANSACTION_OPEN": messages.IN_TRANSACTION,
        "TRANSACTION_ENDED": messages.ENDED_TRANSACTION,
    }
    assert len(herd_pb2.Isolation.items()) == len(Isolation)
    assert herd_pb2.DESCRIPTOR.services_by_name["Tablespaces"].full_name == SERVICE
