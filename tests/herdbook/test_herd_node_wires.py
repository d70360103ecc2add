"""A node serves its clients over both wires, and other machines only where that is wanted."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import aio

from engine.errors import InvalidRequest
from engine.transport.security import NO_SECURITY
from herd.wire.grpc_generated import herd_pb2
from herd.wire.grpc_service import SERVICE
from herd.wire.service import HerdService
from herdbook.herd_node import HerdNodeSettings, _check_listener, _serve
from tests.acceptance.machines import free_port
from tests.herd.wire.test_route import NodeOf, reaching
from tests.herd.wire.wiring import embedded


async def test_a_node_serves_frames_and_grpc(tmp_path: Path) -> None:
    framed, grpc = free_port(), free_port()
    settings = HerdNodeSettings(f"127.0.0.1:{framed}", f"127.0.0.1:{grpc}")
    async with embedded(tmp_path) as herd, AsyncExitStack() as stack:
        await herd.tablespace()
        service = HerdService(NodeOf(herd), herd.workers)
        await _serve(stack, service, herd.client, settings, NO_SECURITY, None, dict)
        async with reaching(herd, [f"tcp:127.0.0.1:{framed}"]) as remote:
            assert await remote.names() == ["default"]
        async with aio.insecure_channel(f"127.0.0.1:{grpc}") as channel:
            ask = channel.unary_unary(
                f"/{SERVICE}/Names",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=herd_pb2.NamesReply.FromString,
            )
            assert list((await ask(herd_pb2.NamesRequest())).names) == ["default"]
        with pytest.raises(InvalidRequest, match="cannot listen"):
            await _serve(stack, service, herd.client, settings, NO_SECURITY, None, dict)


@pytest.mark.parametrize("everywhere", [{"listen": "0.0.0.0:7180"}, {"grpc": "[::]:7181"}])
def test_other_machines_are_not_served_without_a_proof_unless_told(
    everywhere: dict[str, str],
) -> None:
    settings = replace(HerdNodeSettings(), **everywhere)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="could write"):
        _check_listener(settings, NO_SECURITY)
    _check_listener(replace(settings, insecure=True), NO_SECURITY)
