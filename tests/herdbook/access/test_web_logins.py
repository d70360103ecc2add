"""The broker's own HTTP: who is known there, who guesses, and where passwords are looked at."""

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import herdbook
from broker.http import User, create_app, desk_of
from engine.access.scram import ScramVerifier
from engine.errors import AccessRefused
from engine.ports.clock import SystemClock
from engine.ports.renewing import Renewed, renew_all
from herdbook.access.opening import users_of
from herdbook.access.web_logins import FileUsers, StoreLogins
from herdbook.http.gate import Gate
from herdbook.http.settings import WebSettings
from herdbook.task_api import open_tasks
from herdbook.task_server import TaskServerSettings, renewed_users, serve_tasks
from tests.broker.service.yard import opened
from tests.herdbook.http.yard import users

TASKS = "/api/v1/tasks"
WORD = "the word of elsa"


@asynccontextmanager
async def serving(
    folder: Path, known: tuple[User, ...] | Renewed[tuple[User, ...]] = ()
) -> AsyncIterator[str]:
    """Where a folder's tasks are served, by this process."""
    ended = asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = TaskServerSettings("127.0.0.1:0", users=known)
    server = asyncio.create_task(serve_tasks(str(folder), settings, url.set_result, ended=ended))
    try:
        server.add_done_callback(lambda _: url.cancel())
        yield await url
    finally:
        ended.set()
        await server


async def test_users_of_a_file_are_those_that_it_names_now(tmp_path: Path) -> None:
    file, folder = tmp_path / "users.toml", tmp_path / "store"
    async with herdbook.open_async(folder):
        pass

    def write(text: str) -> None:
        file.write_text(text)
        file.chmod(0o600)

    write('[users.elsa]\npassword = "the word of elsa"\n')
    known = renewed_users(file)
    async with serving(folder, known) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get(TASKS, auth=("elsa", WORD))).status_code == 200
        write('[users.ben]\npassword = "the word of ben"\n')
        renew_all()
        for wrong in ("[users]\n", "moo", ""):
            write(wrong)
            renew_all()
        assert (await client.get(TASKS, auth=("ben", "the word of ben"))).status_code == 200
        with pytest.raises(AccessRefused):
            await FileUsers(known).password("elsa", WORD)


class Stopped(SystemClock):
    """A clock that does not move."""

    def monotonic(self) -> float:
        return 1_000.0


class Noted:
    """Counts logins, as an audit."""

    def __init__(self) -> None:
        self.refused = 0
        self.let_in = 0

    def note(
        self, who: str, what: str, where: str, *, allowed: bool, why: str = "", peer: str = ""
    ) -> None:
        assert (who, peer) == ("elsa", "127.0.0.1")
        self.refused += not allowed
        self.let_in += allowed


async def test_a_folder_with_users_asks_for_them_wherever_its_tasks_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "config.toml"
    configuration.write_text('[audit]\nfolder = "audit"\n')
    monkeypatch.setenv("HERDBOOK_CONFIG", str(configuration))
    folder = tmp_path / "store"
    async with herdbook.open_async(folder) as book:
        await (await users_of(book)).rows.add("elsa", WORD, admin=True)
    async with serving(folder) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/healthz")).status_code == 200
        for login in (None, ("elsa", "wrong"), ("herdbook-folder", "")):
            assert (await client.get(TASKS, auth=login)).status_code == 401, login
        assert (await client.get(TASKS, auth=("elsa", WORD))).status_code == 200
        # Whoever may read the folder needs no login.
        async with open_tasks(str(folder)) as api:
            assert await api.ask("POST", "/tasks", {"type": "t"})
    [noted] = [
        told
        for line in (tmp_path / "audit" / "audit-broker.jsonl").read_text().splitlines()
        if (told := json.loads(line))["who"] == "elsa" and not told["allowed"]
    ]
    assert noted["peer"] == "127.0.0.1"


async def test_guesses_at_users_of_a_file_wait_and_the_folders_owner_does_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store"
    async with herdbook.open_async(folder):
        pass
    known = (User("elsa", WORD, admin=True), User("rita", WORD))
    async with (
        serving(folder, known) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        assert (await client.get(TASKS, auth=("elsa", WORD))).status_code == 200
        replies = [await client.get(TASKS, auth=("rita", f"{n}")) for n in range(7)]
        statuses = [reply.status_code for reply in replies]
        assert statuses[:5] == [401] * 5 and statuses[-1] == 429, statuses
        assert int(replies[-1].headers["Retry-After"]) > 0
        assert (await client.get(TASKS, auth=("elsa", WORD))).status_code == 200
        task = {"type": "t", "tenant": "rita"}
        assert (await client.post(TASKS, json=task, auth=("elsa", WORD))).status_code == 201
        async with open_tasks(str(folder)) as api:
            assert await api.ask("GET", "/tasks")


async def test_a_user_of_a_file_has_the_tenant_of_their_name(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with herdbook.open_async(folder):
        pass
    known = (User("elsa", WORD, admin=True), User("rita", WORD))
    async with (
        serving(folder, known) as url,
        httpx.AsyncClient(base_url=url, auth=("rita", WORD)) as client,
    ):
        for tenant, status in (("rita", 201), ("elsa", 403)):
            task = {"type": "t", "tenant": tenant}
            assert (await client.post(TASKS, json=task)).status_code == status, tenant


async def test_a_folder_without_users_is_open_as_it_was(tmp_path: Path) -> None:
    async with herdbook.open_async(tmp_path / "store"):
        pass
    async with serving(tmp_path / "store") as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.post(TASKS, json={"type": "t"})).status_code == 201


async def test_who_guesses_at_the_brokers_own_http_waits_and_is_noted() -> None:
    known, noted = users(), Noted()
    gate = Gate(known, WebSettings(), Stopped(), random.Random(7), noted)
    async with opened() as broker:
        app = create_app(desk_of(broker), StoreLogins(gate))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for _ in range(10):
                assert (await client.get(TASKS, auth=("elsa", "elsa-moo"))).status_code == 200
            assert known.asked == 1, "what was proved a moment ago is not looked at again"
            replies = [await client.get(TASKS, auth=("elsa", f"{n}")) for n in range(7)]
            statuses = [reply.status_code for reply in replies]
            assert statuses[:5] == [401] * 5 and statuses[-1] == 429, statuses
            assert int(replies[-1].headers["Retry-After"]) > 0
            assert replies[-1].json()["error"]["code"] == "too_many_tries"
            assert known.asked - 1 == statuses.count(401) and noted.refused == 7
            assert noted.let_in == 1, "a login is noted when it first comes"


async def test_a_password_is_looked_at_in_no_thread_of_the_tablespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    fits = ScramVerifier.fits

    def watched(self: ScramVerifier, password: str) -> bool:
        threads.append(threading.current_thread().name)
        return fits(self, password)

    monkeypatch.setattr(ScramVerifier, "fits", watched)
    async with herdbook.open_async(tmp_path / "store") as book:
        known = await users_of(book)
        await known.rows.add("elsa", WORD, admin=True)
        assert (await known.password("elsa", WORD)).admin
    assert len(threads) == 1 and threads[0].startswith("passwords")
