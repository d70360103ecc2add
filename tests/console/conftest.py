"""One browser and one store for all tests of the console."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.access.principal import Grant, Principal
from engine.access.scram import ScramVerifier
from engine.errors import AccessRefused
from tests.console.chromium import Browser, Page, chromium
from tests.console.furnishing import furnish
from tests.console.serving import Served, served

ROOT = Path(__file__).parents[2]
PASSWORD = "a bell on a collar"
SIZE = (1280, 900)


class Knows:
    """Knows ann, who administers, bob, who may read letters, and cal, who may write photos."""

    people = {
        "ann": Principal("ann", admin=True),
        "bob": Principal("bob", grants=(Grant("bucket", "letters", "read"),)),
        "cal": Principal(
            "cal",
            grants=(
                Grant("bucket", "*", "read"),
                Grant("bucket", "photos", "write"),
                Grant("tenant", "*", "read"),
                Grant("tenant", "acme", "write"),
            ),
        ),
    }

    async def anonymous(self) -> Principal:
        """Nobody comes without a name."""
        raise AccessRefused("nobody comes without a name")

    async def password(self, user: str, password: str) -> Principal:
        """All have the same one."""
        if password != PASSWORD:
            raise AccessRefused("the password is wrong")
        return await self.principal(user)

    async def token(self, token: str) -> Principal:
        """There are none."""
        raise AccessRefused("there is no such token")

    async def scram(self, user: str) -> ScramVerifier:
        """Nobody proves it that way."""
        raise AccessRefused("by password only")

    async def principal(self, user: str, proved: ScramVerifier | None = None) -> Principal:
        """Who that is."""
        if user not in self.people:
            raise AccessRefused("there is no such user")
        return self.people[user]

    async def session(
        self, user: str, proved: ScramVerifier | None = None, made_ms: int | None = None
    ) -> str:
        """There are no tokens."""
        raise AccessRefused("by password only")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A store with something of everything in it."""
    with served(tmp_path_factory.mktemp("console") / "north-barn", Knows()) as store:
        store.run(lambda: furnish(store))
        yield store


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def window(browser: Browser) -> Page:
    """The one page of all tests: another one takes a second."""
    return browser.page(*SIZE)


@pytest.fixture
def page(window: Page, store: Served) -> Iterator[Page]:
    """A page without a past, which asked nobody but this machine and did not complain."""
    window.open("about:blank")
    window.network(on=True)
    window.forget(store.url, store.guarded_url)
    window.size(*SIZE)
    window.theme("light")
    yield window
    assert window.complaints == []
    ours = (store.url, store.guarded_url, "about:", "data:")
    assert [url for url in window.asked if not url.startswith(ours)] == []


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where pictures of pages go."""
    folder = Path(os.environ.get("CI_ARTIFACTS") or ROOT / "build") / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
