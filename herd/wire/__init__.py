"""Sessions from another process or machine: the wire, its servers and what they serve."""

from herd.wire.framed_server import SessionServer
from herd.wire.grpc_server import GrpcSessionServer
from herd.wire.service import HerdService
from herd.wire.settings import WireSettings

__all__ = ["GrpcSessionServer", "HerdService", "SessionServer", "WireSettings"]
