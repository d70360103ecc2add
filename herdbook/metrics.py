"""Metrics for Prometheus: kept in this process, served as text on `http://HOST:PORT/metrics`.

Invariants:
- Everything is kept and served on the event loop: a gauge is read where it is changed.
- Whoever asks can only look: one path, bounded requests, a deadline on each.
- Nothing is shown but what components told, and of the process what Prometheus's own names tell.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.errors import InvalidRequest
from engine.extras import needing_cluster
from engine.ports.clock import Clock
from engine.ports.metrics import LATENCY_BOUNDS_S, Counter, Histogram
from engine.transport.address import network_of
from engine.transport.listening import share_of

if TYPE_CHECKING:
    from herdbook.process_measures import ProcessMeasures

REQUEST_BYTES_MAX: Final = 8 * 1024
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 32


class _PrometheusCounter:
    """Prometheus's own under the names of the contract."""

    __slots__ = ("add",)

    def __init__(self, add: Callable[[float], None]) -> None:
        self.add: Callable[..., None] = add


class PrometheusMetrics:
    """Implements `engine.ports.metrics.Metrics` with prometheus-client."""

    def __init__(self) -> None:
        # Loads on first use: only whoever serves metrics needs it.
        with needing_cluster():
            from prometheus_client import CollectorRegistry

        self.registry = CollectorRegistry()
        self._families: dict[str, Any] = {}
        self._tells_of_process = False

    def counter(self, name: str, says: str, **labels: str) -> Counter:
        """The counter of a name and labels."""
        from prometheus_client import Counter as Family

        return _PrometheusCounter(self._child(Family, name, says, labels).inc)

    def histogram(
        self, name: str, says: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> Histogram:
        """The histogram of a name and labels."""
        from prometheus_client import Histogram as Family

        found: Histogram = self._child(Family, name, says, labels, buckets=tuple(bounds))
        return found

    def gauge(
        self, name: str, says: str, read: Callable[[], float], **labels: str
    ) -> Callable[[], None]:
        """Let `read` be asked at each scrape; returns the way to end that."""
        from prometheus_client import Gauge as Family

        self._child(Family, name, says, labels).set_function(read)
        family = self._families[name]

        def end() -> None:
            if labels:
                with contextlib.suppress(KeyError):
                    family.remove(*labels.values())
            elif self._families.pop(name, None) is not None:
                self.registry.unregister(family)

        return end

    def tell_of_process(self) -> None:
        """Show memory, processor time and open files of this process, once."""
        if not self._tells_of_process:
            from prometheus_client import ProcessCollector

            self._tells_of_process = True
            ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """All of it as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)

    def _child(
        self, family: type[Any], name: str, says: str, labels: dict[str, str], **more: Any
    ) -> Any:
        """The metric of these labels; its family is made when its name is heard first."""
        made = self._families.get(name)
        if made is None:
            made = family(name, says, tuple(labels), registry=self.registry, **more)
            self._families[name] = made
        return made.labels(**labels) if labels else made


class MetricsServer:
    """Serves `/metrics` until it is closed. Made by `start`."""

    def __init__(self, metrics: PrometheusMetrics, process: "ProcessMeasures") -> None:
        self._metrics = metrics
        self._process = process
        self._server: asyncio.Server | None = None
        self._host = ""
        self._open: dict[asyncio.StreamWriter, asyncio.Future[None]] = {}

    @classmethod
    async def start(cls, metrics: PrometheusMetrics, listen: str, clock: Clock) -> "MetricsServer":
        """Listen at "host:port", port 0 for any, and measure the process meanwhile.

        Raises `InvalidRequest` for what is no address, `OSError` for one that cannot be had.
        """
        host, colon, port = listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise InvalidRequest(f"{listen!r} is no host:port to serve metrics at")
        from herdbook.process_measures import ProcessMeasures

        server = cls(metrics, ProcessMeasures(metrics, clock))
        server._host = host
        server._server = await asyncio.start_server(
            server._answer, host.strip("[]") or None, int(port), limit=REQUEST_BYTES_MAX
        )
        server._process.start()
        return server

    @property
    def port(self) -> int:
        """The port that it listens at."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where Prometheus is to look."""
        return f"http://{self._host}:{self.port}/metrics"

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._open)

    async def close(self) -> None:
        """Listen no more, and hang up."""
        self._process.close()
        assert self._server is not None
        self._server.close()
        answering = list(self._open.values())
        for writer in list(self._open):
            # Its reader hears the end; cancelling it instead would be reported as a fault.
            writer.transport.abort()
        await asyncio.gather(*answering)
        await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = self._open[writer] = asyncio.get_running_loop().create_future()
        try:
            if len(self._open) <= CONNECTIONS_MAX and self._has_room(writer):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._reply(head))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Whatever it was, it was no scrape.
            pass
        finally:
            del self._open[writer]
            writer.close()
            answered.set_result(None)

    def _has_room(self, writer: asyncio.StreamWriter) -> bool:
        """Whether its address stays within its share, so that it cannot lock out others."""
        address = _address(writer)
        return sum(_address(each) == address for each in self._open) <= share_of(CONNECTIONS_MAX)

    def _reply(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(b"405 Method Not Allowed", b"only GET\n", "text/plain")
        if path != b"/metrics":
            return _response(b"404 Not Found", b"look at /metrics\n", "text/plain")
        from prometheus_client import CONTENT_TYPE_LATEST

        body = self._metrics.text()
        reply = _response(b"200 OK", body, CONTENT_TYPE_LATEST)
        return reply if method == b"GET" else reply[: -len(body)]


def _address(writer: asyncio.StreamWriter) -> str:
    peer = writer.get_extra_info("peername")
    return network_of(str(peer[0])) if peer else ""


def _response(status: bytes, body: bytes, kind: str) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, kind.encode(), len(body)) + body
