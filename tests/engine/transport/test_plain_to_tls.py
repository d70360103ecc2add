"""A client without TLS at a server that speaks nothing else: the error guesses why."""

import asyncio
import logging
from pathlib import Path

import pytest

from engine.errors import AccessRefused
from engine.ports.clock import SystemClock
from engine.transport.framed_client import ClientConnection
from engine.transport.framed_settings import FramedSettings
from engine.transport.security import Security
from tests.engine.transport.certificates import Authority


async def test_a_client_without_tls_is_told_that_the_server_may_want_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")
    signed = Authority(tmp_path, "herd").sign("server")
    context = Security(certificate=signed.certificate, private_key=signed.private_key)
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context.server_context()
    )
    address = f"tcp:127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        with pytest.raises(AccessRefused, match="perhaps it wants TLS"):
            await ClientConnection.dial(address, {}, SystemClock(), FramedSettings())
    finally:
        server.close()
