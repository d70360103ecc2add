"""The node's HTTP as a process of its own: over TLS, with the users of its store, to its end."""

import asyncio
import logging
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

import herdbook
from engine.access.principal import Grant, Principal
from engine.errors import InvalidRequest
from herd.errors import LeaderUnavailable
from herdbook.access import authenticator
from herdbook.access.authenticator import StoreAuthenticator
from herdbook.access.opening import users_of
from herdbook.http import serving as serving_http
from herdbook.http.app import Shell
from herdbook.http.serving import FirstUser, HttpServerSettings, serve_http
from herdbook.http_listening import listening_at
from herdbook.node.opening import open_to_serve
from tests.engine.transport.certificates import Authority
from tests.herdbook.http.yard import API

SERVER = """
import asyncio, sys
from pathlib import Path
from herdbook.http.serving import HttpServerSettings, WebSettings, serve_http
folder, certificate, key, once = sys.argv[1:]
settings = HttpServerSettings(
    listen="127.0.0.1:0",
    certificate=Path(certificate) if certificate else None,
    private_key=Path(key) if key else None,
    web=WebSettings(once=once),
)
def started(at):
    print(at.url, flush=True)
    print(at.login_url, flush=True)
    assert not once or once not in repr(at)
asyncio.run(serve_http(folder, settings, started=started))
"""


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[tuple[str, str]]:
    """A server's url and its login's, until it was told to stop, and has ended well."""
    given = [*more, "", "", ""][:3]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder), *given],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def with_users(folder: Path) -> None:
    """A folder with an administrator, and with one who may read one bucket."""
    async with herdbook.open_async(folder) as book:
        rows = (await users_of(book)).rows
        await rows.add("elsa", "elsa-moo-99", admin=True)
        await rows.add("bob", "bob-moo-9999")
        await rows.grant("bob", Grant("bucket", "alma", "read"))
        await book.blobs.create_bucket("alma")


def test_a_stores_own_users_are_asked_for_over_tls_and_nobody_else_is_let_in(
    tmp_path: Path,
) -> None:
    asyncio.run(with_users(tmp_path / "store"))
    authority = Authority(tmp_path, "ca")
    signed = authority.sign("server")
    trusting = ssl.create_default_context(cafile=authority.path)
    files = (str(signed.certificate), str(signed.private_key))
    with (
        serving(tmp_path / "store", *files, "a-ticket") as (url, login_url),
        httpx.Client(verify=trusting, base_url=url) as client,
    ):
        assert url.startswith("https://127.0.0.1:")
        assert client.get("/health/ready").json() == {"ready": True, "degraded": False, "why": ""}
        assert client.get(f"{API}/me").status_code == 401
        assert client.get(f"{API}/me", auth=("elsa", "wrong")).status_code == 401
        assert client.get(f"{API}/me", auth=("elsa", "elsa-moo-99")).json()["admin"] is True
        bob = ("bob", "bob-moo-9999")
        assert client.get(f"{API}/buckets/alma/objects", auth=bob).status_code == 200
        assert client.put(f"{API}/buckets/alma/objects/x", auth=bob).status_code == 403
        assert client.get(f"{API}/ledgers", auth=bob).status_code == 403
        assert login_url == f"{url}/login?once=a-ticket"
        reply = client.get(login_url)
        assert reply.status_code == 303 and "Secure" in reply.headers["set-cookie"]
        assert client.get(f"{API}/me").json()["session"] is True
        client.cookies.clear()
        assert client.get(login_url).headers["location"] == "/?expired"


async def refused(**settings: object) -> str:
    """Why it does not serve."""
    with pytest.raises(InvalidRequest) as told:
        given: Any = settings
        await serve_http("nowhere", HttpServerSettings(**given), ended=asyncio.Event())
    return str(told.value)


async def test_it_does_not_serve_strangers_by_accident(tmp_path: Path) -> None:
    assert "could be read on its way" in await refused(listen="0.0.0.0:0")
    assert "come together" in await refused(certificate=tmp_path / "x")
    signed = Authority(tmp_path, "ca").sign("server")
    settings = HttpServerSettings("0.0.0.0:0", "", "", signed.certificate, signed.private_key)
    with pytest.raises(InvalidRequest, match="anybody who can reach"):
        (tmp_path / "open").mkdir()
        await serve_http(str(tmp_path / "open"), settings, None, ended=asyncio.Event())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        assert "cannot listen" in await refused(listen=at)


async def test_without_users_it_answers_only_about_its_health_until_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As at an address that other machines reach.
    monkeypatch.setattr(serving_http, "is_loopback", lambda host: False)
    monkeypatch.setattr(serving_http, "_LOOK_S", 0.05)
    monkeypatch.setattr(authenticator, "FRESH_S", 0.05)
    caplog.set_level(logging.INFO, "herdbook")
    signed = Authority(tmp_path, "ca").sign("server")
    settings = HttpServerSettings("127.0.0.1:0", "", "", signed.certificate, signed.private_key)
    ended, began = asyncio.Event(), asyncio.get_running_loop().create_future()
    folder = tmp_path / "store"
    async with open_to_serve(folder, {}, ()) as opened:
        running = asyncio.ensure_future(
            serve_http(str(folder), settings, opened=opened, started=began.set_result, ended=ended)
        )
        await asyncio.wait((running, began), return_when=asyncio.FIRST_COMPLETED)
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        async with httpx.AsyncClient(verify=trusting, base_url=began.result().url) as client:
            for path in ("/", "/login?once=x", "/metrics", f"{API}/me", f"{API}/buckets"):
                reply = await client.get(path)
                assert reply.status_code == 503 and reply.json()["error"]["code"] == "no_users"
                assert "herdbook user add" in reply.text and "Retry-After" in reply.headers
            for path in ("/health/live", "/health/ready", "/healthz"):
                assert (await client.get(path)).status_code == 200
            rows = (await users_of(opened.book)).rows
            await rows.add("elsa", "elsa-moo-99", admin=True)
            async with asyncio.timeout(20):
                while (await client.get(f"{API}/me")).status_code == 503:
                    continue
            assert (await client.get(f"{API}/me")).status_code == 401
            known = await client.get(f"{API}/me", auth=("elsa", "elsa-moo-99"))
            assert known.json()["admin"] is True
        ended.set()
        await running
    waits = [each for each in caplog.messages if "serves nobody yet" in each]
    assert len(waits) == 1 and "herdbook user add" in waits[0]
    assert any("serves now" in each for each in caplog.messages)


async def test_it_waits_while_users_cannot_be_read_and_says_why(tmp_path: Path) -> None:
    class Silent(StoreAuthenticator):
        def __init__(self) -> None:
            pass

        async def anonymous(self) -> Principal:
            raise LeaderUnavailable("nobody leads the tablespace system")

    shell = Shell(Response("moo"), gate=None)  # type: ignore[arg-type]
    assert not await FirstUser(shell, Silent(), "0.0.0.0:7380").there()
    assert shell.closed is not None and shell.closed.status == 503
    assert "nobody leads the tablespace system" in shell.closed.message


def test_a_small_reply_does_not_wait_for_an_acknowledgement() -> None:
    with (
        listening_at("127.0.0.1:0") as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
