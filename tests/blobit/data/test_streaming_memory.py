"""A stream goes in and out in memory that does not grow with its length.

`HERDBOOK_BLOB_STREAM_MIB` sets the length: 5 GiB in the soak.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

STREAM_MIB = int(os.environ.get("HERDBOOK_BLOB_STREAM_MIB", "160"))
GROWN_KIB_MAX = 100 * 1024


@pytest.mark.parametrize("compression", ["", "zstd"])
async def test_a_long_stream_goes_in_and_out_in_little_memory(
    compression: str, tmp_path: Path
) -> None:
    # Compressing takes longer, and nothing of it depends on the length.
    length_mib = STREAM_MIB // 4 if compression else STREAM_MIB
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.blobit.data.streaming_child", str(tmp_path), str(length_mib), compression),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    report = json.loads(output)
    print(f"{length_mib} MiB {compression}: {report}")
    assert report["grown_kib"] <= GROWN_KIB_MAX, report
