"""What people do at the console, in a real browser over a real store."""

import json
from pathlib import Path
from typing import Any, cast

from broker.settings import Pause, Quota
from broker.spec import Spec
from broker.task import Status
from engine.metadata.bookies import DECOMMISSIONS, Bookies, FolderAge
from engine.metadata.repairs import RepairQueue
from tests.broker.service.yard import submitted
from tests.console.chromium import Browser, Page
from tests.console.furnishing import COWS, MARKED
from tests.console.serving import Served

BIG_BYTES = 3 * 1024 * 1024 + 17


def cells(page: Page) -> list[list[str]]:
    """The rows of the result that is shown."""
    found: list[list[str]] = page.run(
        "[...document.querySelectorAll('.result tbody tr')]"
        ".map((row) => [...row.children].map((cell) => cell.innerText))"
    )
    return found


def names_in(store: Served, bucket: str) -> list[str]:
    """What a bucket holds."""

    async def listed() -> list[str]:
        page = await (await store.book.blobs.bucket(bucket)).list()
        return [each.name for each in page.objects]

    return store.run(listed)


def test_a_query_shows_its_rows_and_a_wrong_one_the_place(
    store: Served, page: Page, pictures: Path
) -> None:
    page.open(f"{store.url}/#/tables/default")
    page.fill("textarea", "SELECT id, name, weight_kg FROM cows WHERE id < 2 ORDER BY id")
    page.click("Run")
    page.wait("document.querySelector('.result')")
    assert cells(page) == [["0", MARKED, "NULL"], ["1", "Bella", "512.5"]]
    page.sees("2 rows in ")
    page.picture(pictures / "tables-result.png")
    page.fill("textarea", "SELECT id\nFROM cows WHERE")
    page.click("Run")
    page.sees("Line 2, column ")
    page.picture(pictures / "tables-wrong.png")
    page.fill("textarea", "SELECT a.id FROM cows a, cows b, cows c")
    page.click("Run")
    page.sees("Only the first 100 rows are here.")
    assert len(cells(page)) == 100
    assert all("status of 400" in each for each in page.complaints)
    page.complaints.clear()


def test_what_changes_every_row_is_asked_about_and_the_past_can_be_had_again(
    store: Served, page: Page
) -> None:
    async def weighed() -> Any:
        async with await store.book.sql() as connection:
            cursor = await connection.execute("SELECT COUNT(*) FROM cows WHERE weight_kg = 1")
            return await cursor.fetchone()

    page.open(f"{store.url}/#/tables/default")
    page.fill("textarea", "UPDATE cows SET weight_kg = 1")
    page.click("Run")
    page.sees("It changes every row.")
    page.click("Keep as it is", "dialog")
    page.wait("!document.querySelector('dialog')")
    assert store.run(weighed) == (0,)
    page.fill("textarea", "UPDATE cows SET weight_kg = 1 WHERE id = 5")
    page.click("Run")
    page.sees("Done: 1 row changed")
    assert store.run(weighed) == (1,)
    page.run("document.querySelector('textarea').value = ''")
    page.run("document.querySelector('.desk details').open = true")
    page.click("UPDATE cows SET weight_kg = 1 WHERE id = 5")
    assert page.run("document.querySelector('textarea').value").endswith("WHERE id = 5")


def test_no_comment_text_or_parenthesis_hides_from_the_question_what_a_statement_does(
    store: Served, page: Page, pictures: Path
) -> None:
    tables, rows = "It changes the tables themselves.", "It changes every row."
    weights = {
        "/* x */ drop table cows": tables,
        "-- now\n ; Truncate cows": tables,
        "/* one /* in */ the other */ ALTER TABLE cows ADD litres INT": tables,
        "/* it's */ DROP TABLE cows -- '": tables,
        "DELETE FROM cows -- WHERE id = 5": rows,
        "DELETE /* WHERE */ FROM cows": rows,
        "UPDATE cows SET name = 'WHERE' || e'it\\'s WHERE'": rows,
        "UPDATE cows SET id = (SELECT MAX(id) FROM cows WHERE (id) > 1)": rows,
        "UPDATE cows SET name = '/*' WHERE id = (5)": "",
        "UPDATE cows SET name = 'it''s -- so' WHERE id = 5": "",
        "SELECT 'a' -- DROP\n FROM cows": "",
        "SELECT ';' || '(' AS drop_, 1 / 2": "",
        "'": "",
        "/* DROP": "",
    }
    page.open(f"{store.url}/#/tables/default")
    page.fill("textarea", "/* x */ drop table cows")
    page.click("Run")
    page.sees(tables)
    for theme in ("light", "dark"):
        page.theme(theme)
        page.picture(pictures / f"tables-grave-{theme}.png")
    page.click("Keep as it is", "dialog")
    told = page.run(
        f"import('/sql_weight.js').then(({{ weight }}) => {json.dumps(list(weights))}.map(weight))"
    )
    assert dict(zip(weights, told, strict=True)) == weights


def test_the_keyboard_alone_reaches_the_box_and_runs_a_query(store: Served, page: Page) -> None:
    page.open(f"{store.url}/#/")
    page.sees("Bookies up")
    page.key("Tab")
    assert page.run("document.activeElement.id") == "skip"
    page.key("Enter")
    page.wait("document.activeElement.id === 'main'")
    page.key("g")
    page.key("s")
    page.wait("document.querySelector('textarea')")
    for _ in range(6):
        page.key("Tab")
        if page.run("document.activeElement.tagName") == "TEXTAREA":
            break
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.type("SELECT COUNT(*) AS cows FROM cows")
    page.key("Enter", ctrl=True)
    page.wait("document.querySelector('.result')")
    assert cells(page) == [[str(COWS)]]


def test_shortcuts_are_listed_and_the_focus_comes_back(store: Served, page: Page) -> None:
    page.open(f"{store.url}/#/workers")
    page.sees("shed-1")
    page.run("document.querySelector('tbody tr').focus()")
    page.key("?", shift=True)
    page.sees("Go to the first field")
    page.key("Escape")
    page.wait("!document.querySelector('dialog')")
    assert page.run("document.activeElement.tagName") == "TR"


def test_a_file_goes_up_and_comes_down_and_is_replaced_only_on_purpose(
    store: Served, browser: Browser, page: Page, tmp_path: Path
) -> None:
    sent = tmp_path / "hay bale #1.bin"
    sent.write_bytes(bytes(range(256)) * (BIG_BYTES // 256))
    page.open(f"{store.url}/#/buckets/photos")
    page.sees("The bucket is empty.")
    page.choose_files("input[type=file]", sent)
    page.sees("hay bale #1.bin is stored.")
    assert names_in(store, "photos") == [sent.name]
    page.wait("document.querySelector('td a[download]')")
    page.click("Download", "tbody")
    got = browser.downloads / sent.name
    page.wait("true")
    while not (got.exists() and got.stat().st_size == sent.stat().st_size):
        page.wait("true")
    assert got.read_bytes() == sent.read_bytes()
    sent.write_bytes(b"a smaller one")
    page.choose_files("input[type=file]", sent)
    page.sees("There is a hay bale #1.bin in the bucket already.")
    page.click("Replace it")
    page.sees("13 B")
    page.click("Delete", "tbody")
    page.sees("The object goes out of the bucket photos")
    page.click("Delete the object", "dialog")
    page.sees("The bucket is empty.")
    assert names_in(store, "photos") == []
    assert all("status of 412" in each for each in page.complaints)
    page.complaints.clear()


def test_a_task_is_cancelled_after_a_question_that_names_it(
    store: Served, page: Page, pictures: Path
) -> None:
    [number] = store.run(lambda: submitted(store.broker, Spec("letter", "dora")))

    async def status() -> Status:
        return (await store.broker.task(number)).status

    page.open(f"{store.url}/#/tasks?tenant=dora")
    page.click("Cancel", "tbody")
    page.sees(f"Cancel task {number} (letter of dora)?")
    page.picture(pictures / "tasks-cancel.png")
    page.click("Let it be", "dialog")
    assert store.run(status) is Status.WAITING
    page.click("Cancel", "tbody")
    page.click("Cancel the task", "dialog")
    page.sees(f"Task {number} is cancelled.")
    assert store.run(status) is Status.CANCELLED
    page.click("Retry", "tbody")
    page.click("Retry the task", "dialog")
    page.sees(f"Task {number} begins anew.")
    assert store.run(status) is Status.WAITING


def test_tenants_are_paused_workers_drained_and_roll_outs_go_on(store: Served, page: Page) -> None:
    async def settings() -> dict[str, Any]:
        return {name: value for _, name, value in await store.broker.settings_of("")}

    page.open(f"{store.url}/#/tasks")
    row = "[aria-label=Tenants] tr[data-key=acme]"
    page.click("Pause", row)
    page.fill("dialog input", "hay first")
    page.click("Pause the tenant", "dialog")
    page.sees("hay first")
    assert store.run(settings)["tenant:acme"] == Pause("hay first")
    page.click("Resume", row)
    page.click("Resume the tenant", "dialog")
    page.sees("The tenant acme is served again.")
    page.run("location.hash = '#/workers'")
    page.click("Drain", "tr[data-key='shed-1']")
    page.click("Drain the worker", "dialog")
    page.sees("draining")
    assert store.run(settings)["shed-1"].places == 0
    page.click("Let it work", "tr[data-key='shed-1']")
    page.click("Let it work", "dialog")
    page.sees("The worker shed-1 gets tasks again.")
    assert "shed-1" not in store.run(settings) and "tenant:acme" not in store.run(settings)
    page.run("location.hash = '#/rollouts/paint-2026'")
    page.click("Pause")
    page.fill("dialog input", "no paint")
    page.click("Pause the roll-out", "dialog")
    page.sees("paused: no paint")
    page.click("Resume")
    page.click("Resume the roll-out", "dialog")
    page.sees("resumed")


def test_repair_is_switched_off_and_on_and_a_scrub_reads_everything(
    store: Served, page: Page
) -> None:
    queue = RepairQueue(store.book.ledgers.store)
    page.open(f"{store.url}/#/bookies")
    page.click("Switch repair off")
    page.fill("dialog input", "new disks")
    page.click("Switch it off", "dialog")
    page.sees("off: new disks")
    assert store.run(queue.disabled) == "new disks"
    page.click("Switch repair on")
    page.click("Switch it on", "dialog")
    page.sees("Repair is on.")
    assert store.run(queue.disabled) is None
    page.click("Scrub")
    page.click("Begin the scrub", "dialog")
    page.sees(" entries read, ")


def test_a_bookie_that_went_is_forgotten_after_a_question(
    store: Served, page: Page, pictures: Path
) -> None:
    facts = store.book.ledgers.store
    store.run(lambda: Bookies(facts).raise_age("gone", FolderAge(1)))
    store.run(lambda: facts.create(f"{DECOMMISSIONS}/gone", b""))
    page.open(f"{store.url}/#/bookies")
    page.wait("document.querySelector('tr[data-key=gone]')")
    offered = "[...document.querySelectorAll('[aria-label=Bookies] tbody button')].map((it) =>"
    assert page.run(f"{offered} it.innerText).filter((it) => it === 'Forget').length") == 1
    for theme in ("light", "dark"):
        page.theme(theme)
        page.picture(pictures / f"bookies-left-{theme}.png")
    page.click("Forget", "tr[data-key=gone]")
    page.click("Forget it", "dialog")
    page.sees("gone is forgotten.")
    page.wait("!document.querySelector('tr[data-key=gone]')")
    assert "gone" not in store.run(Bookies(facts).known)


def test_a_bucket_is_made_and_deleted_and_a_refusal_is_told_in_the_question(
    store: Served, page: Page
) -> None:
    page.open(f"{store.url}/#/buckets")
    page.click("Make a bucket")
    page.fill("dialog input", "letters")
    page.click("Make it", "dialog")
    page.wait("document.querySelector('dialog .problem')")
    page.fill("dialog input", "seeds")
    page.click("Make it", "dialog")
    page.sees("The bucket is empty.")
    page.run("location.hash = '#/buckets'")
    page.click("Delete", "tr[data-key=seeds]")
    page.click("Delete the bucket", "dialog")
    page.sees("The bucket seeds is deleted.")
    page.wait("!document.querySelector('tr[data-key=seeds]')")
    names = [each.name for each in store.run(store.book.blobs.buckets)]
    assert sorted(names) == ["letters", "photos"]
    assert all("status of 409" in each for each in page.complaints)
    page.complaints.clear()


def test_a_ledger_that_belongs_to_something_is_not_deleted_by_mistake(
    store: Served, page: Page
) -> None:
    before = store.run(store.book.ledgers.list_ledgers)
    page.open(f"{store.url}/#/ledgers/{min(before)}")
    page.click("Delete")
    page.click("Delete the ledger", "dialog")
    page.sees("belongs to")
    page.wait("document.querySelector('dialog .problem')")
    assert json.dumps(sorted(store.run(store.book.ledgers.list_ledgers))) == json.dumps(
        sorted(before)
    )
    page.complaints.clear()


def test_a_schedule_is_paused_and_fires_again(store: Served, page: Page) -> None:
    async def paused() -> bool:
        found = {each.name: each.paused for each in await store.broker.schedules()}
        return found["clean"]

    page.open(f"{store.url}/#/tasks")
    page.key("g")
    page.key("c")
    page.sees("every 1 h")
    page.click("Pause", "tr[data-key=clean]")
    page.click("Keep as it is", "dialog")
    page.wait("!document.querySelector('dialog')")
    assert not store.run(paused)
    page.click("Pause", "tr[data-key=clean]")
    page.click("Pause the schedule", "dialog")
    page.sees("The schedule clean is paused.")
    assert store.run(paused)
    page.click("Resume", "tr[data-key=clean]")
    page.click("Resume the schedule", "dialog")
    page.sees("The schedule clean fires again.")
    assert not store.run(paused)


def test_quotas_of_buckets_and_of_tenants_are_changed_and_removed(
    store: Served, page: Page
) -> None:
    async def quotas() -> dict[str, Any]:
        return {name: value for _, name, value in await store.broker.settings_of("quota")}

    page.open(f"{store.url}/#/tasks")
    page.key("g")
    page.key("q")
    page.sees("of 1.0 MiB")
    page.click("Change", "tr[data-key=letters]")
    assert page.run("document.querySelector('dialog input[name=bytes]').value") == "1MiB"
    page.fill("dialog input[name=objects]", "50")
    page.fill("dialog input[name=bytes]", "1.5 MB")
    page.click("Change the quota", "dialog")
    page.sees("The quota of the bucket letters is changed.")
    use = store.run(lambda: store.book.blobs.use("letters"))
    assert (use.quota_objects, use.quota_bytes) == (50, 1_500_000)
    page.click("Change", "tr[data-key=acme]")
    page.fill("dialog input[name=tasks]", "2000")
    page.fill("dialog input[name=bytes]", "")
    page.click("Change the quota", "dialog")
    page.sees("The quota of the tenant acme is set.")
    page.click("Remove", "tr[data-key=acme]")
    page.click("Remove the quota", "dialog")
    page.sees("The quota of the tenant acme is removed.")
    page.click("Set a quota")
    page.fill("dialog input[name=name]", "casey")
    page.fill("dialog input[name=tasks]", "7")
    page.click("Set the quota", "dialog")
    page.sees("The quota of the tenant casey is set.")
    assert store.run(quotas) == {"": Quota(tasks=9_000), "casey": Quota(tasks=7)}


def test_a_quota_of_nothing_is_shown_as_one_and_stays_one_when_another_limit_changes(
    store: Served, page: Page, pictures: Path
) -> None:
    store.run(lambda: store.broker.set("quota", "nobody", Quota(0, 0), "ann"))

    async def kept() -> Quota:
        found = {name: quota for _, name, quota in await store.broker.settings_of("quota")}
        return cast(Quota, found["nobody"])

    page.open(f"{store.url}/#/quotas")
    page.sees("What schedules, retries and roll-outs submit counts, and is never refused.")
    row = "document.querySelector('tr[data-key=nobody]')"
    page.wait(row)
    assert page.run(f"[...{row}.cells].map((it) => it.innerText)")[1:3] == ["0 of 0", "0 B of 0 B"]
    for theme in ("light", "dark"):
        page.theme(theme)
        page.picture(pictures / f"quotas-nothing-{theme}.png")
    page.click("Change", "tr[data-key=nobody]")
    page.fill("dialog input[name=tasks]", "3")
    page.picture(pictures / "quotas-change.png")
    page.click("Change the quota", "dialog")
    page.sees("0 of 3")
    assert store.run(kept) == Quota(3, 0)
    page.click("Change", "tr[data-key=nobody]")
    page.fill("dialog input[name=bytes]", "")
    page.click("Change the quota", "dialog")
    page.wait(f"{row}.innerText.includes('0 B, no limit')")
    assert store.run(kept) == Quota(3, None)
    assert store.run(lambda: store.broker.set("quota", "nobody", None, "ann"))
