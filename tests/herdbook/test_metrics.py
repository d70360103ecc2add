"""Metrics: what components tell is what a scrape shows, and a scrape is all that is served."""

import asyncio
import gc
from pathlib import Path

import pytest

from engine import cluster
from engine.bookie.measures import BookieMeasures
from engine.errors import InvalidRequest
from engine.ledger.measures import ClientMeasures
from engine.ports.clock import SystemClock
from engine.ports.metrics import NO_METRICS
from engine.transport.contract import Status
from engine.transport.listening import share_of
from herdbook.metrics import CONNECTIONS_MAX, MetricsServer, PrometheusMetrics
from herdbook.process_measures import process_measured


def line(metrics: PrometheusMetrics, begin: str) -> str:
    """The only line of the text with this beginning."""
    found = [each for each in metrics.text().decode().splitlines() if each.startswith(begin)]
    assert len(found) == 1, (begin, found)
    return found[0]


async def ask(port: int, request: bytes) -> bytes:
    """What a server answers to bytes; nothing if it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_what_a_bookie_tells_stands_in_the_text() -> None:
    metrics = PrometheusMetrics()
    measures = BookieMeasures(metrics, "b1")
    queued = [7]
    measures.watch("herdbook_bookie_queue_bytes", "Queued.", lambda: queued[0])
    measures.written(3, 4096, [0.0004, 0.3])
    measures.refused(Status.READ_ONLY)
    measures.refused(Status.READ_ONLY)
    measures.read(100)
    label = '{bookie="b1"}'
    assert line(metrics, f"herdbook_bookie_batches_total{label}").endswith(" 2.0")
    assert line(metrics, f"herdbook_bookie_written_bytes_total{label}").endswith(" 4096.0")
    assert line(metrics, f"herdbook_bookie_sync_seconds_count{label}").endswith(" 2.0")
    assert (
        line(metrics, 'herdbook_bookie_sync_seconds_bucket{bookie="b1",le="0.001"}')[-3:] == "1.0"
    )
    assert (
        line(metrics, 'herdbook_bookie_refused_total{bookie="b1",status="read_only"}')[-3:] == "2.0"
    )
    assert line(metrics, f"herdbook_bookie_queue_bytes{label}").endswith(" 7.0")
    queued[0] = 9
    assert line(metrics, f"herdbook_bookie_queue_bytes{label}").endswith(" 9.0")
    measures.close()
    assert "herdbook_bookie_queue_bytes{" not in metrics.text().decode()


def test_two_who_ask_for_one_name_tell_one_number() -> None:
    metrics = PrometheusMetrics()
    ClientMeasures(metrics).adds.add(2)
    ClientMeasures(metrics).adds.add(3)
    assert line(metrics, "herdbook_client_adds_total ").endswith(" 5.0")


def test_metrics_that_nobody_looks_at_take_everything() -> None:
    measures = BookieMeasures(NO_METRICS, "b1")
    measures.watch("x", "y", lambda: 1 / 0)
    measures.written(1, 1, [1.0])
    measures.refused(Status.FENCED)
    measures.close()
    assert NO_METRICS.counter("a", "b") is NO_METRICS.counter("c", "d", e="f")


async def test_a_scrape_shows_the_text_and_other_requests_are_told_so() -> None:
    metrics = PrometheusMetrics()
    server = await MetricsServer.start(metrics, "127.0.0.1:0", SystemClock())
    try:
        ClientMeasures(metrics).adds.add(4)
        head, _, body = (await ask(server.port, b"GET /metrics HTTP/1.1\r\n\r\n")).partition(
            b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"herdbook_client_adds_total 4.0" in body
        assert b"herdbook_loop_lag_seconds" in body
        assert b"process_open_fds" in body and b"process_resident_memory_bytes" in body
        assert f"Content-Length: {len(body)}".encode() in head
        only = await ask(server.port, b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert only.endswith(b"\r\n\r\n") and only.startswith(b"HTTP/1.1 200 ")
        assert (await ask(server.port, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
        assert (await ask(server.port, b"POST /metrics HTTP/1.1\r\n\r\n"))[9:12] == b"405"
        assert await ask(server.port, b"x" * 100_000) == b""
    finally:
        await server.close()


async def test_one_address_that_says_nothing_keeps_no_other_one_from_metrics() -> None:
    server = await MetricsServer.start(PrometheusMetrics(), "127.0.0.1:0", SystemClock())
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
    try:
        for reader, _ in silent[share_of(CONNECTIONS_MAX) :]:
            assert await reader.read() == b""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    finally:
        for _, end in silent:
            end.close()
        await server.close()


async def test_a_server_that_closes_lets_go_of_who_says_nothing() -> None:
    server = await MetricsServer.start(PrometheusMetrics(), "127.0.0.1:0", SystemClock())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET")
    await writer.drain()
    await server.close()
    try:
        assert await reader.read() == b""
    except ConnectionError:
        assert not server.connections
    writer.close()


async def test_a_process_tells_how_long_collections_of_garbage_kept_it() -> None:
    metrics = PrometheusMetrics()
    hooks = len(gc.callbacks)
    with process_measured(metrics):
        gc.collect()
        begin = 'herdbook_gc_pause_seconds_count{generation="2"}'
        async with asyncio.timeout(10):
            # Counted on the loop, with its next tick.
            while float(line(metrics, begin).split()[1]) < 1:
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)
        assert float(line(metrics, "herdbook_loop_lag_seconds_count").split()[1]) >= 1
        assert float(line(metrics, "process_open_fds").split()[1]) >= 3
        assert float(line(metrics, "process_resident_memory_bytes").split()[1]) > 1_000_000
    assert len(gc.callbacks) == hooks


async def test_a_process_that_nobody_looks_at_is_not_measured() -> None:
    hooks = list(gc.callbacks)
    with process_measured(NO_METRICS):
        assert gc.callbacks == hooks


@pytest.mark.parametrize("listen", ["", "9000", "host:", "host:port", "host:70000"])
async def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        await MetricsServer.start(PrometheusMetrics(), listen, SystemClock())


async def test_a_client_counts_what_it_did(tmp_path: Path) -> None:
    metrics = PrometheusMetrics()
    async with cluster.open(tmp_path, metrics=metrics) as client:
        writer = await client.create_ledger()
        await writer.append_many([b"moo"] * 300)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert len([entry async for entry in reader.read(0, 299)]) == 300
        (bookie_id,) = client.bookies
        label = f'{{bookie="{bookie_id}"}}'
        assert float(line(metrics, f"herdbook_bookie_batches_total{label}").split()[1]) >= 1
        assert line(metrics, f"herdbook_bookie_read_bytes_total{label}").endswith(" 900.0")
    assert line(metrics, "herdbook_client_adds_total ").endswith(" 300.0")
    requests = float(line(metrics, "herdbook_client_append_request_seconds_count ").split()[1])
    assert 1 <= requests <= 10
    assert line(metrics, "herdbook_client_speculative_reads_total ").endswith(" 0.0")
