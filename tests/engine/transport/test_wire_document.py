"""What docs/wire.md tells authors of clients is true."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from engine import limits
from engine.transport.contract import Status
from engine.transport.grpc_generated import bookie_pb2 as wire
from engine.transport.grpc_settings import (
    LONG_POLL_MS_MAX,
    MESSAGE_BYTES_MAX,
    ORDER_BYTES_MAX,
    GrpcSettings,
)
from tests.engine.transport.grpc_wiring import wired

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "wire.md").read_text()


async def test_the_example_runs_as_it_stands_and_prints_what_the_page_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, expected = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)[:2]
    names: dict[str, Any] = {}
    exec(compile(code, "docs/wire.md", "exec"), names)
    async with wired() as made:
        await asyncio.get_running_loop().run_in_executor(
            None, names["example"], made.address, "a", 7, wire
        )
    assert capsys.readouterr().out == expected


def test_every_status_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) `STATUS_(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(str(int(status)), status.name) for status in Status]


def test_every_grpc_status_that_is_named_exists() -> None:
    table = PAGE.split("Of the call:")[1].split("## Limits")[0]
    named = re.findall(r"`([A-Z]+_?[A-Z]*)`", table)
    assert len(named) >= 7
    for name in named:
        assert name.startswith("STATUS") or name in StatusCode.__members__


def test_the_limits_are_those_of_the_code() -> None:
    table = PAGE.split("## Limits")[1].split("## What makes")[0]
    settings = GrpcSettings()
    said = {
        "an entry": f"{limits.ENTRY_BYTES_MAX // limits.MIB} MiB",
        "a message, in both directions": f"{MESSAGE_BYTES_MAX // limits.MIB} MiB",
        "a message": f"under {ORDER_BYTES_MAX // limits.MIB} MiB",
        "unanswered appends": f"{settings.stream_bytes_max // limits.MIB} MiB, "
        f"{settings.append_bytes_max // limits.MIB} MiB",
        "entries on their way": f"{settings.connection_read_bytes_max // limits.MIB} MiB, "
        f"{settings.read_bytes_max // limits.MIB} MiB",
        "calls that run": f"{settings.calls_max:,}, of which {settings.calls_max // 2:,}",
        "a long poll": f"{LONG_POLL_MS_MAX // 1_000} s",
        "a call without": f"{settings.request_timeout_ms // 1_000} s",
        "a TLS handshake": f"{settings.connect_timeout_ms // 1_000} s",
        "keepalive pings": f"every {settings.keepalive_ms // 4_000} s",
    }
    for start, words in said.items():
        rows = [line for line in table.splitlines() if line.startswith(f"| {start}")]
        assert rows and words in rows[0], (start, words)
