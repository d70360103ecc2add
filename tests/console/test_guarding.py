"""Who may look, and that nothing that others wrote, or serve, does anything in the page."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from engine.metadata.repairs import RepairQueue
from tests.console.chromium import Browser, Page
from tests.console.conftest import PASSWORD
from tests.console.furnishing import DRAWING, MARKED, PAGE
from tests.console.serving import Served

_ASK: Final = """
fetch(%s, {method: "POST", credentials: "include", headers: %s, mode: %s, body: "{}"})
  .then((reply) => [reply.status, reply.type], (error) => String(error))
"""


def posted(
    page: Page, url: str, *, mode: str = "cors", headers: dict[str, str] | None = None
) -> Any:
    """Status and kind of what a page gets for a post, or what it was told instead."""
    return page.run(_ASK % (json.dumps(url), json.dumps(headers or {}), json.dumps(mode)))


def sign_in(page: Page, store: Served, user: str, password: str = PASSWORD) -> None:
    """Fill the form in and send it."""
    page.open(f"{store.guarded_url}/")
    page.fill("input[name=user]", user)
    page.fill("input[name=password]", password)
    page.click("Sign in", "form")


def assert_refused(page: Page, *statuses: int) -> None:
    """The page complained of answers of these statuses, and of nothing else."""
    expected = tuple(f"status of {status}" for status in statuses)
    assert [each for each in page.complaints if not any(text in each for text in expected)] == []
    page.complaints.clear()


def test_who_is_not_known_signs_in_and_a_wrong_password_is_told(
    store: Served, page: Page, pictures: Path
) -> None:
    sign_in(page, store, "ann", "a wrong one")
    page.sees("User or password is wrong.")
    for theme in ("light", "dark"):
        page.theme(theme)
        page.picture(pictures / f"login-{theme}.png")
    assert page.run("document.activeElement.name") == "password"
    page.fill("input[name=password]", PASSWORD)
    page.click("Sign in", "form")
    page.sees("Signed in as ann")
    page.sees("Bookies up")
    page.run("location.hash = '#/tables'")
    page.fill("textarea", "SELECT 1 AS one")
    page.click("Run")
    page.sees("1 row in ")
    assert page.run("document.cookie") == ""
    page.click("Sign out")
    page.sees("Sign in to the console.")
    assert page.run("localStorage.length") == 0
    page.open(f"{store.guarded_url}/#/tables")
    page.sees("Sign in to the console.")
    assert_refused(page, 401)


def end_session(page: Page) -> None:
    """Have the session end without the page's doing."""
    page.run(
        "fetch('api/v1/me').then((it) => it.json()).then(({ csrf }) => fetch('api/v1/logout',"
        " { method: 'POST', headers: { 'X-Herdbook-Token': csrf } })).then((it) => it.status)"
    )


def test_a_session_that_has_ended_leads_back_to_the_sign_in_and_from_there_back(
    store: Served, page: Page
) -> None:
    sign_in(page, store, "ann")
    page.sees("Signed in as ann")
    page.run("location.hash = '#/workers'")
    page.sees("shed-1")
    end_session(page)
    page.asked.clear()
    page.sees("Sign in to the console.")
    page.run("fetch('icon.svg').then((it) => it.text())")
    assert [url for url in page.asked if url.endswith("/me")] == [f"{store.guarded_url}/api/v1/me"]
    page.fill("input[name=user]", "ann")
    page.fill("input[name=password]", PASSWORD)
    page.click("Sign in", "form")
    page.sees("shed-1")
    assert_refused(page, 401)


def test_what_somebody_asked_is_not_there_for_the_next_user_however_the_session_ended(
    store: Served, page: Page
) -> None:
    sign_in(page, store, "ann")
    page.sees("Signed in as ann")
    page.run("location.hash = '#/tables'")
    page.fill("textarea", "SELECT 'a secret' AS it")
    page.click("Run")
    page.sees("1 row in ")
    page.sees("History (1)")
    page.run("localStorage.setItem('herdbook.sql bob', '[\"SELECT 2\"]')")
    page.run("location.reload()")
    page.wait("localStorage.getItem('herdbook.sql bob') === null")
    page.sees("History (1)")
    kept = "JSON.stringify({ ...localStorage })"
    assert "a secret" in page.run(kept)
    end_session(page)
    page.run("import('/health.js').then(({ askHealth }) => askHealth())")
    page.sees("Sign in to the console.")
    assert page.run(kept) == "{}"
    assert_refused(page, 401)


def test_an_address_that_logs_in_once_says_when_it_does_not_any_more(
    store: Served, page: Page
) -> None:
    page.open(f"{store.guarded_url}/login?once={'0' * 64}")
    page.sees("That address has been used, or is too old.")
    assert_refused(page, 401)


def test_who_may_not_is_told_so_and_sees_what_they_may(store: Served, page: Page) -> None:
    sign_in(page, store, "bob")
    page.sees("Signed in as bob")
    links = page.run("[...document.querySelectorAll('nav a')].map((each) => each.innerText)")
    assert links == ["Overview", "Tables", "Buckets", "Quotas", "Tasks", "Workers"]
    page.run("location.hash = '#/ledgers'")
    page.sees("An administrator can grant it.")
    page.run("location.hash = '#/buckets'")
    page.sees("letters")
    assert "photos" not in page.run("document.querySelector('main').innerText")
    assert_refused(page, 401, 403)


def test_nobody_is_offered_what_is_always_refused(
    store: Served, page: Page, pictures: Path
) -> None:
    buttons = "[...document.querySelectorAll('%s button')].map((each) => each.innerText)"
    sign_in(page, store, "cal")
    page.sees("Signed in as cal")
    page.run("location.hash = '#/buckets'")
    page.wait("document.querySelector('tr[data-key=photos]')")
    assert page.run(buttons % "main") == []
    for theme in ("light", "dark"):
        page.theme(theme)
        page.picture(pictures / f"buckets-reader-{theme}.png")
    page.run("location.hash = '#/quotas'")
    page.wait("document.querySelector('tr[data-key=photos]')")
    assert page.run(buttons % "main") == []
    page.run("location.hash = '#/buckets/letters?prefix=2026%2F'")
    page.wait("document.querySelector('a[download]')")
    assert page.run(buttons % "main") == ["Show"]
    page.picture(pictures / "bucket-reader.png")
    page.run("location.hash = '#/buckets/letters/2026%2Freadme.txt'")
    page.sees("the upper one")
    assert page.run(buttons % "main") == []
    page.run("location.hash = '#/buckets/photos'")
    page.sees("Drop files here, or choose some above.")
    assert page.run(buttons % "main") == ["Show", "Upload files"]
    page.run("location.hash = '#/tasks?status=waiting'")
    page.wait("document.querySelector('tbody tr')")
    rows = "[...document.querySelectorAll('[aria-label=Tasks] tbody tr')]"
    offered = "[row.cells[3].innerText, row.innerText.includes('Cancel')].join()"
    assert {"acme,true", "borden,false"} <= set(page.run(f"{rows}.map((row) => {offered})"))
    page.run("location.hash = '#/tasks/2'")
    page.sees("borden")
    assert "Delete" not in page.run(buttons % "main")
    page.run("location.hash = '#/tasks/1'")
    page.sees("resize")
    page.wait(f"{buttons % 'main'}.includes('Delete')")
    assert_refused(page, 401, 403)


def test_a_page_of_another_site_can_change_nothing_through_who_is_signed_in(
    store: Served, page: Page
) -> None:
    sign_in(page, store, "ann")
    page.sees("Bookies up")
    target = f"{store.guarded_url}/api/v1/repair/off"
    token = page.run("fetch('api/v1/me').then((it) => it.json()).then((it) => it.csrf)")
    assert len(token) >= 32
    assert posted(page, target)[0] == 403
    assert_refused(page, 401, 403)
    # A name of this machine's own is another site than its address.
    page.open(store.url.replace("127.0.0.1", "localhost") + "/icon.svg")
    page.complaints.clear()
    blocked = posted(page, target, mode="no-cors")
    assert blocked == "TypeError: Failed to fetch"
    page.open("data:text/html,<form method=post></form>")
    page.run(f"document.forms[0].action = {json.dumps(target)}; document.forms[0].submit()")
    page.wait(f"location.href === {json.dumps(target)} && document.readyState === 'complete'")
    assert "other_origin" in page.run("document.body.innerText")
    queue = RepairQueue(store.book.ledgers.store)
    assert store.run(queue.disabled) is None
    page.asked[:] = [url for url in page.asked if "//localhost:" not in url]
    page.complaints.clear()


def test_objects_of_markup_are_downloads_and_never_run(
    store: Served, browser: Browser, page: Page
) -> None:
    page.open(f"{store.url}/#/buckets/letters?prefix=hostile%2F")
    page.sees("drawing.svg")
    for name, body in (("page.html", PAGE), ("drawing.svg", DRAWING)):
        url = f"{store.url}/api/v1/buckets/letters/objects/hostile%2F{name}"
        told = page.run(
            f"fetch({json.dumps(url)}).then((it) => ['content-disposition',"
            "'content-security-policy', 'x-content-type-options']"
            ".map((each) => it.headers.get(each)))"
        )
        assert told[0].startswith("attachment") and "sandbox" in told[1] and told[2] == "nosniff"
        page.send("Page.navigate", url=url)
        got = browser.downloads / name
        while not (got.exists() and got.stat().st_size == len(body)):
            page.wait("true")
        assert got.read_bytes() == body
    for name in ("page.html", MARKED):
        shown = json.dumps(f"#/buckets/letters/{'hostile%2F' + _quoted(name)}")
        page.run(f"location.hash = {shown}")
        page.wait(f"document.querySelector('h1')?.innerText === {json.dumps('hostile/' + name)}")
    assert page.run("document.title") != "it ran"
    assert page.run("document.querySelectorAll('img, iframe, object, embed').length") == 0


@pytest.mark.parametrize(
    "attempt",
    [
        "it = document.createElement('script'); it.textContent = RUN; document.head.append(it)",
        "it = document.createElement('div'); it.setAttribute('onclick', RUN); it.click()",
        'document.body.innerHTML = `<img src=x onerror="${RUN}">`',
        "document.body.append(document.createRange().createContextualFragment(RUN))",
        "it = document.createElement('a'); it.href = `javascript:${RUN}`; it.click()",
        "it = document.createElement('style'); it.textContent = 'h1 { color: red }';"
        " document.head.append(it); if (it.sheet.cssRules.length) eval(RUN)",
        "eval(RUN)",
        "setTimeout(RUN)",
        "import('data:text/javascript,document.title=%27it ran%27')",
    ],
)
def test_the_policy_of_the_page_lets_nothing_in(store: Served, page: Page, attempt: str) -> None:
    page.open(f"{store.url}/#/")
    page.sees("Bookies up")
    run = json.dumps("document.title = 'it ran'")
    page.run(
        f"(async () => {{ let it; const RUN = {run}; try {{ {attempt} }} catch {{ }} }})()"
        ".then(() => new Promise((soon) => requestAnimationFrame(() => setTimeout(soon))))"
    )
    assert page.run("document.title") == "Overview · Herdbook"
    assert page.complaints != []
    page.complaints.clear()


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
