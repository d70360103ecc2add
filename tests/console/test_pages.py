"""Each page of the console in a real browser: what it shows, that it complains of nothing."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.console.chromium import Page
from tests.console.furnishing import MARKED
from tests.console.serving import Served

PAGES: Final = {
    "overview": ("#/", "Ledgers to repair"),
    "ledgers": ("#/ledgers", "ledgers in all"),
    "ledger": ("#/ledgers/1", "Where its entries are"),
    "bookies": ("#/bookies", "Ledgers waiting"),
    "tables": ("#/tables", "milkings"),
    "buckets": ("#/buckets", "photos"),
    "bucket": ("#/buckets/letters", "2025"),
    "folder": ("#/buckets/letters?prefix=hostile%2F", "drawing.svg"),
    "object": ("#/buckets/letters/2026%2Freadme.txt", "the upper one"),
    "quotas": ("#/quotas", "all others"),
    "schedules": ("#/schedules", "0 4 * * *"),
    "tasks": ("#/tasks", "the post office is shut"),
    "task": ("#/tasks/3", "dead letter"),
    "workers": ("#/workers", "shed-1"),
    "rollouts": ("#/rollouts", "paint-2026"),
    "rollout": ("#/rollouts/roof-2026", "paused: it rains"),
}
_WIDTHS: Final = (400, 900, 1280)
_UNNAMED: Final = """
[...document.querySelectorAll("main :is(input, select, textarea, button, a, svg[role=img])")]
  .filter((each) => !each.hidden && !(each.labels?.length || each.ariaLabel
    || each.textContent.trim()))
  .map((each) => each.outerHTML)
"""
_GREEN: Final = "document.querySelectorAll('td .state.good').length === %d"
_TOO_WIDE: Final = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def shown(page: Page, store: Served, name: str) -> None:
    """Go to a page, and wait until all of it is there."""
    hash_, text = PAGES[name]
    page.open(f"{store.url}/{hash_}")
    page.sees(text)
    page.wait("!document.body.innerText.includes('Loading…')")


def assert_out_of_reach(page: Page) -> None:
    """The page complained of addresses that were out of reach, and of nothing else."""
    assert page.complaints != []
    assert all("ERR_INTERNET_DISCONNECTED" in each for each in page.complaints)
    page.complaints.clear()


def test_a_node_is_called_by_its_name_and_the_beginning_of_its_id(
    store: Served, page: Page
) -> None:
    page.open(store.url)
    script = """import("/pages/overview.js").then(({ called }) => {
        const words = (...of) => [called(...of)].flat().map((each) => each.textContent ?? each);
        return [words("49fa42582fed", "node-1"), words("49fa42582fed", "")];
    })"""
    assert page.run(script) == [["node-1 ", "49fa4258"], ["49fa42582fed"]]


def test_a_tablespace_that_lacks_replicas_stands_first_and_is_marked(
    store: Served, page: Page
) -> None:
    page.open(store.url)
    script = """import("/pages/overview.js").then(({ copies, lackingFirst }) => {
        const replicas = { barn: { wanted: 3, ready: 3 }, cows: { wanted: 3, ready: 1 } };
        const cluster = { tablespaces: ["alone", "barn", "cows"], replicas };
        const shown = (name) => {
            const aside = copies(cluster, name);
            return aside && [aside[1].textContent, aside[1].classList.contains("bad")];
        };
        return lackingFirst(cluster).map((name) => [name, shown(name)]);
    })"""
    assert page.run(script) == [
        ["cows", ["1 of 3 replicas", True]],
        ["alone", None],
        ["barn", ["3 of 3 replicas", False]],
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_there_is_in_both_themes(
    store: Served, page: Page, pictures: Path, name: str
) -> None:
    shown(page, store, name)
    inks = set()
    for theme in ("light", "dark"):
        page.theme(theme)
        inks.add(page.run("getComputedStyle(document.body).color"))
        page.picture(pictures / f"{name}-{theme}.png")
    assert len(inks) == 2
    assert page.run(_UNNAMED) == []
    assert page.run("document.querySelectorAll('main h1').length") == 1
    too_wide = []
    for width in _WIDTHS:
        page.size(width, 900)
        too_wide += [width] if page.run(_TOO_WIDE) else []
    assert too_wide == []


def test_names_that_are_markup_are_shown_as_they_are(store: Served, page: Page) -> None:
    for name in ("folder", "object", "tasks", "task", "workers", "schedules"):
        shown(page, store, name)
        page.sees(MARKED)
        assert page.run("document.querySelectorAll('main img, main script').length") == 0
        assert page.run("document.title") != "it ran"


def test_an_object_whose_name_has_no_path_is_shown_and_nothing_of_it_is_asked_for(
    store: Served, page: Page
) -> None:
    photos = store.run(lambda: store.book.blobs.bucket("photos"))
    store.run(lambda: photos.put("..", b"x"))
    try:
        page.open(f"{store.url}/#/buckets/photos")
        page.wait("document.querySelector('main td a')?.innerText === '..'")
        acts = "[...document.querySelectorAll('main td :is(a, button)')].map((it) => it.innerText)"
        assert page.run(acts) == [".."]
        page.run("location.hash = '#/buckets/photos/..'")
        page.sees("No address can have the name .. in it.")
        assert not [url for url in page.asked if url.endswith("/objects") or "/objects/" in url]
    finally:
        store.run(lambda: photos.delete(".."))


def test_a_tenant_whose_tasks_no_worker_takes_is_not_called_served(
    store: Served, page: Page
) -> None:
    shown(page, store, "tasks")
    page.wait("document.querySelector('tr[data-key=acme]')")
    assert "no worker takes letter" in page.run(
        "document.querySelector('tr[data-key=acme]').innerText"
    )


def test_the_page_of_workers_says_how_one_is_started_with_the_stores_own_url(
    store: Served, page: Page
) -> None:
    shown(page, store, "overview")
    none = "new Response('{\"workers\": []}', {headers: {'Content-Type': 'application/json'}})"
    page.run(
        "(() => { const real = window.fetch; window.fetch = (at, ...rest) =>"
        f" String(at).includes('/workers') ? Promise.resolve({none}) : real(at, ...rest); }})()"
    )
    page.run("location.hash = '#/workers'")
    page.wait("document.querySelector('.empty code')?.innerText.endsWith('STORE') === false")
    told = page.run("document.querySelector('.empty code').innerText")
    assert told == f"herdbook worker --tasks your.module --url {store.book.url}"


def test_a_theme_that_was_chosen_is_remembered(store: Served, page: Page) -> None:
    page.theme("light")
    shown(page, store, "overview")
    page.click("Dark theme")
    page.wait("document.documentElement.dataset.theme === 'dark'")
    page.open(f"{store.url}/#/tasks")
    page.open(f"{store.url}/#/")
    page.wait("document.readyState === 'complete'")
    assert page.run("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.click("Light theme")
    assert page.run("getComputedStyle(document.documentElement).colorScheme") == "light dark"


def test_an_address_that_is_no_page_says_so(store: Served, page: Page) -> None:
    for address in ("#/barn", "#/%E0%A4%A"):
        page.open(f"{store.url}/{address}")
        page.sees("There is no such page.")
        page.click("Go to the overview")
        page.sees("Bookies up")
        assert page.run("location.hash") == "#/"


def test_a_bookie_that_is_killed_turns_red_and_when_it_is_back_green(
    store: Served, page: Page, pictures: Path
) -> None:
    engine = store.book.ledgers
    shown(page, store, "overview")
    page.wait(_GREEN % 3)
    store.run(lambda: engine.stop_bookie(1))
    page.sees("One bookie is down.")
    page.sees("2 of 3")
    assert page.run("document.querySelectorAll('.verdict.bad, .mark .state.bad').length") == 2
    assert page.run(_GREEN % 2) and page.run("document.querySelector('td .state.bad').innerText")
    page.picture(pictures / "overview-bookie-down.png")
    page.run("location.hash = '#/bookies'")
    page.wait("document.querySelector('td .state.bad')")
    page.picture(pictures / "bookies-down.png")
    store.run(lambda: engine.start_bookie(1))
    page.wait(_GREEN % 3)
    page.run("location.hash = '#/'")
    page.sees("3 of 3")
    page.wait(_GREEN % 3)
    assert "bookie is down" not in page.run("document.body.innerText")


def test_a_node_that_does_not_answer_is_told_and_asked_again(store: Served, page: Page) -> None:
    shown(page, store, "workers")
    page.network(on=False)
    page.sees("The node does not answer.")
    page.sees("shed-1")
    page.network(on=True)
    page.click("Try again")
    page.wait("!document.querySelector('.problem')")
    assert_out_of_reach(page)


def test_a_page_that_cannot_be_loaded_says_so_and_is_shown_once_the_node_answers(
    store: Served, page: Page, pictures: Path
) -> None:
    press = "[...document.querySelectorAll('main button')].at(-1).click()"
    answers = "import('/health.js').then(({ askHealth }) => askHealth())"
    shown(page, store, "overview")
    for name, again in (("schedules", press), ("quotas", answers)):
        page.network(on=False)
        page.run(f"location.hash = '#/{name}'")
        page.sees("The node does not answer.")
        assert page.run("document.querySelector('main h1')") is None
        for theme in ("light", "dark"):
            page.theme(theme)
            page.picture(pictures / f"unreachable-{theme}.png")
        page.network(on=True)
        page.run(again)
        page.sees(PAGES[name][1])
    assert_out_of_reach(page)


def test_objects_and_tables_that_others_make_come_by_themselves(store: Served, page: Page) -> None:
    async def put() -> None:
        await (await store.book.blobs.bucket("photos")).put("from afar.txt", b"hay")

    async def take_away() -> None:
        await (await store.book.blobs.bucket("photos")).delete("from afar.txt")

    async def execute(statement: str) -> None:
        async with await store.book.sql(autocommit=True) as connection:
            await connection.execute(statement)

    shown(page, store, "overview")
    page.run(
        "(() => { const real = window.setTimeout; window.setTimeout = (work, ms = 0, ...rest) =>"
        " real(work, Math.min(ms, 50), ...rest); })()"
    )
    page.run("location.hash = '#/buckets/photos'")
    page.sees("The bucket is empty.")
    store.run(put)
    page.sees("from afar.txt")
    store.run(take_away)
    page.sees("The bucket is empty.")
    page.run("location.hash = '#/tables'")
    page.sees("milkings")
    page.run("document.querySelector('details[data-table=cows]').open = true")
    store.run(lambda: execute("CREATE TABLE calves (id BIGINT PRIMARY KEY)"))
    page.wait("document.querySelector('details[data-table=calves]')")
    assert page.run("document.querySelector('details[data-table=cows]').open")
    store.run(lambda: execute("DROP TABLE calves"))
    page.wait("!document.querySelector('details[data-table=calves]')")


def test_an_answer_that_cannot_be_drawn_is_told_and_the_page_goes_on_asking(
    store: Served, page: Page
) -> None:
    shown(page, store, "workers")
    wrong = "new Response('{\"workers\": [null]}')"
    page.run(
        "(() => { const real = window.fetch; window.fetch = (at, ...rest) => {"
        " if (!String(at).includes('/workers')) return real(at, ...rest);"
        f" window.fetch = real; return Promise.resolve({wrong}); }}; }})()"
    )
    page.key("r")
    page.sees("What the node answered cannot be shown.")
    page.sees("shed-1")
    page.key("r")
    page.wait("!document.querySelector('.problem')")
    page.sees("shed-1")
    assert len(page.complaints) == 1 and "TypeError" in page.complaints[0]
    page.complaints.clear()


def test_what_is_unknown_of_one_series_is_unknown_of_the_others_together(
    store: Served, page: Page
) -> None:
    page.open(store.url)
    script = """import("/chart.js").then(({ Chart }) => {
        const chart = new Chart("Rates", String);
        const series = Object.fromEntries([..."abcdefg"].map((name) => [name, [1, 2]]));
        chart.show([1_000, 2_000], { ...series, g: [1, null], h: [1, null] });
        return [...chart.node.querySelectorAll("li")].map((each) => each.textContent);
    })"""
    told = page.run(script)
    assert told == ["a 2", "b 2", "c 2", "d 2", "e 2", "3 others unknown"]


def test_the_list_of_a_table_keeps_its_focus_while_it_is_refreshed(
    store: Served, page: Page
) -> None:
    shown(page, store, "workers")
    page.run("document.querySelector('tbody tr').focus()")
    page.key("End")
    page.wait("document.activeElement === document.querySelector('tbody tr:last-child')")
    asked = len([url for url in page.asked if url.endswith("/workers")])
    page.key("r")
    page.wait("true")
    while len([url for url in page.asked if url.endswith("/workers")]) < asked + 2:
        page.wait("true")
    assert page.run("document.activeElement === document.querySelector('tbody tr:last-child')")
    tabbable = "document.querySelectorAll('tbody tr[tabindex=\"0\"]').length"
    assert json.dumps(page.run(tabbable)) == "1"
