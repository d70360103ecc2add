"""A worker put together: its processes, its session, and which code it runs.

Invariants:
- No process is left behind when a worker ends, however it ends.
- Users' code is imported in child processes only.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from broker.connection import ANY_MODULE, Completion, WorkerLimits, WorkerPort
from broker.errors import BrokerUnavailable, InvalidTask
from broker.payloads import STORED_BYTES_MAX
from broker.ports import PayloadStore
from broker.worker.code import CodePlaces, CodeSettings
from broker.worker.pool import Pool, PoolSettings
from broker.worker.registry import REGISTRY, Registry
from broker.worker.stored import StoredPlaces
from broker.worker.worker import Places, Worker, WorkerSettings
from engine.ports.clock import Clock

_MAIN: Final = "__main__"
PLACES_A_PROCESS: Final = 20
STANDING_S: Final = 30.0
_NO_FUNCTIONS: Final = (
    "no task function is registered, so this worker could run nothing: decorate functions with "
    "@task, and name the modules that have them"
)


async def serve_worker(
    port: WorkerPort,
    settings: WorkerSettings,
    pool_settings: PoolSettings,
    clock: Clock,
    rng: random.Random,
    started: Callable[[Worker, Pool], None] | None = None,
    code_settings: CodeSettings | None = None,
    payloads: PayloadStore | None = None,
) -> bool:
    """Run a worker until it is drained; returns whether all that ran could end by itself.

    With `code_settings` it takes tasks that bring their own code, too: those of the types
    `module:function`. `payloads` has what is too big for the log. `started` hears of the worker
    when its processes are ready. Raises `InvalidTask` for code that cannot be imported, and for
    code without any task function, `BrokerUnavailable` where no process can be started,
    `AccessDenied` if the broker refuses the worker for good.
    """
    places: list[StoredPlaces] = []
    if payloads is not None:
        pool_settings = replace(pool_settings, result_bytes_max=STORED_BYTES_MAX)
        if code_settings is not None:
            code_settings = replace(code_settings, pool=pool_settings)
    pool = Pool(pool_settings, lambda ended: places[0].done(ended))
    try:
        types = await pool.start()
        if code_settings is not None:
            types = (*types, ANY_MODULE)
        # To the broker a worker without types is one that runs any.
        if not types:
            raise InvalidTask(_NO_FUNCTIONS)
        worker = Worker(port, settings, types, clock, rng)
        code = None
        if code_settings is not None:
            ended = partial(_ended, places)
            code = CodePlaces(pool, code_settings, worker.fetch_code, ended)
        places.append(StoredPlaces(pool if code is None else code, payloads, worker.done))
        if started is not None:
            started(worker, pool)
        try:
            return await _run(worker, pool, places[0])
        finally:
            await places[0].close()
            if code is not None:
                await code.close()
    finally:
        await pool.close()


def _ended(places: Sequence[StoredPlaces], completions: list[Completion]) -> None:
    places[0].done(completions)


async def _run(worker: Worker, pool: Pool, places: Places) -> bool:
    """A worker's life; it ends, too, when its processes start no more."""
    watching = asyncio.create_task(_watch(worker, pool))
    try:
        whole = await worker.run(places)
        if watching.done():
            watching.result()
        return whole
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(worker: Worker, pool: Pool) -> None:
    """Take no more tasks than the running processes can run; leave if there is none.

    Raises `BrokerUnavailable` when none has run for `STANDING_S`. Stays if the reason is a process
    that does not end: without the worker, the broker would take that one for ended.
    """
    share = 1.0
    while True:
        try:
            leaves = not share and not pool.has_leftovers
            async with asyncio.timeout(STANDING_S if leaves else None):
                share = await pool.until_other_standing()
        except TimeoutError:
            worker.drain()
            raise BrokerUnavailable("no child process of the worker starts any more") from None
        worker.stand(share)


@asynccontextmanager
async def embedded_workers(
    port: WorkerPort,
    processes: int,
    clock: Clock,
    rng: random.Random,
    *,
    places: int | None = None,
    ahead: int = 0,
    modules: Iterable[str] = (),
    registry: Registry = REGISTRY,
    drain_ms: int = 30_000,
    payloads: PayloadStore | None = None,
) -> AsyncIterator[Worker]:
    """Run this program's own task functions in `processes` child processes while the block lasts.

    The modules that registered functions in this process are imported in the children, and those
    named. `places`: how many tasks run at the same time, by default `PLACES_A_PROCESS` for each.
    `ahead`: so many more are assigned and wait in the processes, which saves a way to the broker
    between two tasks; limits count them as running.
    At the end tasks that run may go on for `drain_ms`; where the block is interrupted or cancelled
    they are ended and wait again. Raises as `serve_worker` does.
    """
    places = places if places is not None else processes * PLACES_A_PROCESS
    drawn = f"{rng.getrandbits(64):016x}"
    settings = WorkerSettings(
        f"embedded-{drawn}",
        drawn,
        f"process {os.getpid()}",
        WorkerLimits(places + ahead),
        drain_ms=drain_ms,
    )
    pool_settings = _own_code(registry, modules, processes, places, ahead)
    ready: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_worker(
            port,
            settings,
            pool_settings,
            clock,
            rng,
            lambda worker, _: ready.set_result(worker),
            payloads=payloads,
        )
    )
    try:
        async with _leaving(await _connected(serving, ready), serving) as worker:
            yield worker
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def _leaving(worker: Worker, serving: "asyncio.Task[bool]") -> AsyncIterator[Worker]:
    """Let a worker leave at the end of the block. Raises what ended it before."""
    try:
        yield worker
    except BaseException as error:
        if not isinstance(error, Exception):
            # Who interrupts the program does not wait for tasks: they go back, uncounted.
            worker.drain()
        raise
    finally:
        worker.drain()
        await asyncio.wait((serving,))
    serving.result()


async def _connected(serving: "asyncio.Task[bool]", ready: "asyncio.Future[Worker]") -> Worker:
    """The worker once a leader has welcomed it. Raises what ended it before."""
    await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
    worker = await ready
    connected = asyncio.create_task(worker.connected())
    await asyncio.wait((serving, connected), return_when=asyncio.FIRST_COMPLETED)
    connected.cancel()
    if serving.done():
        serving.result()
    return worker


def _own_code(
    registry: Registry, modules: Iterable[str], processes: int, places: int, ahead: int
) -> PoolSettings:
    code, main = code_of(registry)
    return PoolSettings(
        modules=(*code, *(each for each in modules if each not in code)),
        path=tuple(each or os.getcwd() for each in sys.path),
        main=main,
        processes=processes,
        places=places,
        ahead=ahead,
    )


def code_of(registry: Registry) -> tuple[tuple[str, ...], str]:
    """Which modules a child imports to know a registry's functions, and which program it reads.

    Raises `InvalidTask` for functions that were typed in and are in no file.
    """
    modules = {function.module for function in registry.functions.values()}
    main = ""
    if _MAIN in modules:
        modules.remove(_MAIN)
        file = getattr(sys.modules[_MAIN], "__file__", None)
        if file is None:
            raise InvalidTask("task functions are in no file that a process could import")
        main = str(Path(file).absolute())
    return tuple(sorted(modules)), main
