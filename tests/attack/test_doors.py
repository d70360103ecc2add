"""Every action over every interface as every role: `doors.txt` against real servers."""

import re
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from herd.errors import NotSupportedError
from herd.sql.parsing import parse
from herd.sql.planning import make
from tests.attack.asking import STATEMENTS, Reply, ask, statement
from tests.attack.doors import SQL, TABLE, actions, statement_kinds, statement_words, table
from tests.attack.fort import ALMA, GHOST, ROLES, Fort, Thing

LAST: Final = ("DELETE", "DROP", "TRUNCATE")
ROWS: Final = table()
DOORS: Final = sorted({door for door, _ in ROWS})


@pytest.fixture(scope="module")
def fort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fort]:
    made = Fort(tmp_path_factory.mktemp("fort") / "store")
    try:
        yield made
    finally:
        made.close()


# The table


def test_every_action_of_the_product_has_a_line_and_no_line_is_left_over(fort: Fort) -> None:
    there = actions(fort) | {(door, name) for door in SQL for name in STATEMENTS}
    new, gone = sorted(there - set(ROWS)), sorted(set(ROWS) - there)
    assert not new, f"add a line to {TABLE} for each of {new}, and say in asking.py how it is asked"
    assert not gone, f"{TABLE} has lines of what there is no more: {gone}"


def test_every_kind_of_statement_has_a_line(fort: Fort) -> None:
    texts = {name: statement(name, Thing(ALMA)) for name in STATEMENTS}
    words = {text.split()[0] for text in texts.values()}
    words |= {" ".join(text.split()[:2]) for text in texts.values()}
    lacking = statement_words() - words
    assert not lacking, f"add statements that begin with {sorted(lacking)} to asking.py and {TABLE}"
    planned = {type(made).__name__ for text in texts.values() if (made := planned_of(fort, text))}
    lacking = statement_kinds() - planned
    assert not lacking, f"add statements that are {sorted(lacking)} to asking.py and {TABLE}"


def planned_of(fort: Fort, text: str) -> Any:
    """What a statement is planned as, None for what is not planned."""

    async def plan() -> Any:
        catalog = (await fort.book.herd.tablespace("umbra")).catalog
        parsed = parse(text)
        try:
            return None if parsed.tree is None else make(parsed, catalog)
        except NotSupportedError:
            return None

    return fort.run(plan)


# The doors


@pytest.mark.parametrize("door", DOORS)
def test_each_door_answers_each_role_as_the_table_says(fort: Fort, door: str) -> None:
    rows = [(action, words) for (at, action), words in ROWS.items() if at == door]
    rows.sort(key=lambda row: any(word in row[0] for word in LAST))
    wrong = []
    until_no_task_runs(fort)
    before = state_of(fort)
    # Refused actions come first, because they change nothing.
    for action, words in rows:
        for role in ROLES:
            if words[role] in ("no", "hidden"):
                wrong += refused_wrongly(fort, door, action, role, words[role])
    after = state_of(fort)
    assert not {what: (before[what], after[what]) for what in before if before[what] != after[what]}
    for action, words in rows:
        for role in ROLES:
            if words[role] == "yes":
                wrong += allowed_wrongly(fort, door, action, role, "hidden" in words.values())
    assert not wrong, "\n".join(wrong)


def refused_wrongly(fort: Fort, door: str, action: str, role: str, word: str) -> list[str]:
    """What is wrong with the refusals."""
    reply = ask(fort, door, action, role, fort.alma)
    wrong = leaks(fort, reply, role)
    if word == "no" and not reply.refused:
        wrong.append(f"it is not refused: {reply.text[:200]}")
    if word == "hidden" and reply.refused:
        wrong.append(f"it is refused, and should be as what there is not: {reply.text[:200]}")
    if role == "other":
        # They must not even learn whether another user's thing exists.
        of = fort.umbra if word == "no" else fort.alma
        there, not_there = (
            anonymous(ask(fort, door, action, role, each).text, each) for each in (of, GHOST)
        )
        if there != not_there:
            wrong.append(f"what there is and what there is not differ: {there} | {not_there}")
    return [f"{door} {action}, {role}: {each}" for each in wrong]


def allowed_wrongly(fort: Fort, door: str, action: str, role: str, of_tasks: bool) -> list[str]:
    """What is wrong with the accepted actions."""
    of = fort.run(lambda: fort.fresh(ALMA)) if of_tasks else fort.alma
    reply = ask(fort, door, action, role, of)
    wrong = leaks(fort, reply, role)
    if reply.refused:
        wrong.append(f"it is refused: {reply.text[:200]}")
    return [f"{door} {action}, {role}: {each}" for each in wrong]


def leaks(fort: Fort, reply: Reply, role: str) -> list[str]:
    """Names in a reply that the caller must not see."""
    if role in ("root", "part"):
        return []
    names = ["umbra"] if role in ("reader", "writer", "keeper") else ["umbra", "-of-alma"]
    return [f"it names {name}: {reply.text[:400]}" for name in names if name in reply.text]


def anonymous(text: str, of: Thing) -> str:
    """A text without the names and numbers of a thing."""
    for name in (of.name, str(of.ended), str(of.waiting), str(of.transaction)):
        text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", "…", text)
    return re.sub(r'"status":{.*}', "", text)


def until_no_task_runs(fort: Fort) -> None:
    """Wait until the lease of a worker that an earlier test connected has ended.

    Otherwise its task may be taken back between the two looks at the state.
    """
    root, end_s = fort.web("node-http", "root"), time.monotonic() + 30
    while time.monotonic() < end_s:
        tasks = [
            task
            for tenant in (ALMA, "umbra")
            for task in root.ask("GET", f"/api/v1/tasks?tenant={tenant}").json()["tasks"]
        ]
        if not any(task["status"] == "running" for task in tasks):
            return
    raise AssertionError(f"a task is still running: {tasks}")


def state_of(fort: Fort) -> dict[str, Any]:
    """What the store holds, by what was asked."""
    root = fort.web("node-http", "root")
    asked = (
        *("tablespaces", "buckets", "settings", "schedules", "transactions", "rollouts"),
        *("buckets/alma/objects", "buckets/umbra/objects", "tablespaces/alma/tables"),
        *("tasks?tenant=alma", "tasks?tenant=umbra", "repair", "quotas"),
    )
    told = {path: root.ask("GET", f"/api/v1/{path}").json() for path in asked}
    query = b'{"sql":"SELECT * FROM cow ORDER BY id"}'
    rows = [
        root.ask("POST", f"/api/v1/tablespaces/{name}/query", body=query).json().get("rows")
        for name in (ALMA, "umbra")
    ]
    return told | {"rows": rows, "facts": list(fort.shelf.facts)}
