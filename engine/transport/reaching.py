"""Whether a process listens at an address of a bookie."""

import asyncio
from typing import Final

from engine.errors import InvalidRequest
from engine.transport.address import TCP, parse_host_port

_TIMEOUT_S: Final = 2.0


async def listens(address: str) -> bool:
    """Whether a process may listen at "tcp:host:port". Only a refused connection means no.

    A process that cannot be reached from here, or does not answer in time, may still run.
    """
    try:
        host, port = parse_host_port(address.removeprefix(TCP))
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError, InvalidRequest):
        return True
    writer.close()
    return True
