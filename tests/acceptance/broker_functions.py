"""What the workers of the cluster run: each run leaves a line on the disk.

Invariants:
- A line is one write to the end of a file, made before anything else is done: a run that was killed
  has left it, or has done nothing.
"""

import asyncio
import os

from broker.worker import TaskContext, task


@task
async def leave_a_line(context: TaskContext, number: int, file: str, pause_ms: int) -> int:
    """Note that it runs, work for a while, return its number."""
    task_id, attempt = context.token
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"{number} {task_id} {attempt}\n".encode())
    finally:
        os.close(handle)
    await asyncio.sleep(pause_ms / 1000)
    return number
