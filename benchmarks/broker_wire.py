"""The broker over gRPC, with three bookies: what one caller of another process would get.

Invariants:
- The caller has one call under way, and each is answered when its task is durable.
"""

import time
from random import SystemRandom
from typing import Final

from benchmarks.result import Result
from benchmarks.setting import Setting, run
from broker.commands import Spec
from engine.ports.clock import SystemClock

SUBJECT: Final = "broker"
PAYLOAD: Final = b"x" * 50


def submit_one_grpc(setting: Setting) -> list[Result]:
    """A single caller, task by task, over the public wire on the loopback."""
    value = run(_submit(setting, setting.size(4_000, 400)))
    return [Result(SUBJECT, "submit-one-grpc", round(value), "tasks/s", None)]


async def _submit(setting: Setting, calls: int) -> float:
    from benchmarks.broker import opened
    from broker.wire.grpc_server import GrpcBrokerServer
    from broker.wire.remote import RemoteCalls

    async def measure() -> float:
        with setting.scratch() as folder:
            async with opened(folder) as broker:
                server = await GrpcBrokerServer.start(broker, listen="127.0.0.1:0")
                address = f"127.0.0.1:{server.port}"
                remote = RemoteCalls([address], SystemClock(), SystemRandom())
                await remote.submit([Spec("a", payload=PAYLOAD)])
                start_s = time.perf_counter()
                for _ in range(calls):
                    await remote.submit([Spec("a", payload=PAYLOAD)])
                taken_s = time.perf_counter() - start_s
                await remote.close()
                await server.close(0)
                return calls / taken_s

    return await setting.median(measure)
