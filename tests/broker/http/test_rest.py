"""`/api/v1`: what it does, with which status, and what wrong requests are told."""

import asyncio
from typing import Any

import pytest

from broker.access import RETENTION_MS_MAX
from broker.commands import Spec
from broker.connection import WorkerLimits
from broker.http import HttpSettings, User
from broker.task import Mode, Rule, Status
from tests.broker.http.asking import ACME, ELSA, Client, asked
from tests.broker.service.yard import FakeWorker, submitted


async def test_a_task_goes_from_its_submit_to_its_result() -> None:
    async with asked() as client:
        made = await client.v1(
            "POST", "/tasks", {"type": "resize", "arguments": {"path": "x.jpg"}}, expect=201
        )
        task = await client.v1("GET", f"/tasks/{made['id']}")
        assert (task["status"], task["payload"]) == ("waiting", '{"path":"x.jpg"}')
        assert (task["tenant"], task["events"][0]["kind"]) == ("default", "submitted")
        assert "result" not in task or task["result"] is None
        waiting = asyncio.create_task(client.v1("GET", f"/tasks/{made['id']}/wait"))
        worker = await FakeWorker.connected(client.broker)
        await worker.finish(*await worker.until_runs(1), result=b"\xff\x00")
        task = await waiting
        assert (task["status"], task["result_base64"]) == ("finished", "/wA=")
        reply = await client.http.get(f"/api/v1/tasks/{made['id']}/result")
        assert (reply.content, reply.headers["content-type"]) == (
            b"\xff\x00",
            "application/octet-stream",
        )
        reply = await client.http.get(f"/api/v1/tasks/{made['id']}/payload")
        assert reply.content == b'{"path":"x.jpg"}'
        await client.v1("DELETE", f"/tasks/{made['id']}")
        await client.v1("GET", f"/tasks/{made['id']}", expect=404)


async def test_of_a_busy_slot_other_tenants_are_not_told_which_task_holds_it() -> None:
    async with asked(ELSA, ACME) as client:
        acme = client.as_user(ACME)
        await client.v1("POST", "/tasks", {"type": "t", "slot": "s"}, expect=201)
        mine = (await acme.v1("POST", "/tasks", {"type": "t", "slot": "m"}, expect=201))["id"]
        for slot, named in (("s", None), ("m", mine)):
            wanted = {"type": "t", "slot": slot}
            error = (await acme.v1("POST", "/tasks", wanted, expect=409))["error"]
            assert (error["code"], error.get("task_id")) == ("slot_busy", named)
            told = (await acme.v1("POST", "/tasks/batch", {"tasks": [wanted]}))["results"][0]
            assert (told["error"]["task_id"] or None) == named
            result = (await acme.act("submitTask", tasktype="t", slot=slot))["result"]
            assert ("task" in result) and (str(mine) in result) is bool(named)
        error = (await client.v1("POST", "/tasks", {"type": "t", "slot": "m"}, expect=409))["error"]
        assert error["task_id"] == mine


async def test_where_tasks_run_and_whose_children_they_are_is_not_for_tenants_to_say() -> None:
    async with asked(ELSA, ACME) as client:
        acme = client.as_user(ACME)
        theirs = (await client.v1("POST", "/tasks", {"type": "t"}, expect=201))["id"]
        mine = (await acme.v1("POST", "/tasks", {"type": "t"}, expect=201))["id"]
        for more, status in (
            ({"group": 2}, 403),
            ({"resources": ["gpu"]}, 403),
            ({"retention_ms": RETENTION_MS_MAX + 1}, 403),
            ({"parents": [{"task_id": theirs}]}, 404),
            ({"retention_ms": RETENTION_MS_MAX, "parents": [{"task_id": mine}]}, 201),
        ):
            wanted = {"type": "t", **more}
            told = await acme.v1("POST", "/tasks", wanted, expect=status)
            assert ("id" in told) is (status == 201)
            await client.v1("POST", "/tasks", wanted, expect=201)


async def test_everything_that_may_be_said_of_a_task_arrives() -> None:
    async with asked() as client:
        parent = (await client.v1("POST", "/tasks", {"type": "p"}, expect=201))["id"]
        wanted = {
            "type": "t",
            "tenant": "elsa",
            "payload_base64": "/wA=",
            "priority": -3,
            "delay_ms": 60_000,
            "timeout_ms": 120_000,
            "time_limit_ms": 5,
            "attempts_max": 0,
            "at_most_once": True,
            "slot": "s",
            "unique_key": "u",
            "group": 4,
            "resources": ["db", "gpu"],
            "backoff": {"first_ms": 7, "jitter_percent": 0},
            "retention_ms": 9,
            "parents": [{"task_id": parent, "rule": "always"}],
        }
        now_ms = await client.broker.now_ms()
        made = await client.v1("POST", "/tasks", wanted, expect=201)
        task = client.broker.get(made["id"])
        assert (task.tenant, task.payload, task.priority) == ("elsa", b"\xff\x00", -3)
        assert now_ms + 60_000 <= task.due_ms <= now_ms + 61_000
        assert task.deadline_ms - task.due_ms == 60_000
        assert (task.time_limit_ms, task.attempts_max, task.mode) == (5, 0, Mode.AT_MOST_ONCE)
        assert (task.slot, task.unique_key, task.fixed, task.group) == ("s", "u", True, 4)
        assert (task.resources, task.backoff.first_ms, task.retention_ms) == (("db", "gpu"), 7, 9)
        assert (task.status, task.parents_left) == (Status.BLOCKED, 1)
        assert Rule.ALWAYS


async def test_a_batch_is_answered_item_by_item_or_taken_as_a_whole() -> None:
    async with asked() as client:
        tasks = [{"type": "a", "slot": "s"}, {"type": "b", "slot": "s"}]
        told = (await client.v1("POST", "/tasks/batch", {"tasks": tasks}))["results"]
        assert told[1]["error"]["code"] == "slot_busy"
        assert told[1]["error"]["task_id"] == told[0]["id"]
        graph = [{"type": "a"}, {"type": "b", "parents": [{"index": 0}]}]
        told = await client.v1("POST", "/tasks/batch", {"tasks": graph, "atomic": True})
        first, second = (each["id"] for each in told["results"])
        assert client.broker.get(second).status is Status.BLOCKED and second == first + 1
        tasks = [{"type": "a"}, {"type": "b", "slot": "s"}]
        told = await client.v1("POST", "/tasks/batch", {"tasks": tasks, "atomic": True})
        assert {each["error"]["code"] for each in told["results"]} == {"batch_refused", "slot_busy"}
        told = await client.v1("POST", "/tasks/batch", {"tasks": []}, expect=400)
        assert "length >= 1" in told["error"]["message"]


async def test_lists_go_on_where_their_token_says() -> None:
    async with asked() as client:
        ids = await submitted(
            client.broker, *[Spec("a" if n % 2 else "b", "elsa") for n in range(7)]
        )
        found: list[int] = []
        token: int | None = 0
        while token is not None:
            page = await client.v1("GET", "/tasks", limit=3, token=token)
            found += [each["id"] for each in page["tasks"]]
            token = page["token"]
        assert found == ids
        page = await client.v1("GET", "/tasks", type="a", tenant="elsa", status="waiting")
        assert [each["id"] for each in page["tasks"]] == ids[1::2]
        assert (await client.v1("GET", "/tasks", status="running"))["tasks"] == []


async def test_a_dead_letter_is_listed_and_begun_anew() -> None:
    async with asked() as client:
        worker = await FakeWorker.connected(client.broker)
        [task_id] = await submitted(client.broker, Spec("a"))
        [run] = await worker.until_runs(1)
        await worker.fail(run, error="it broke")
        [dead] = (await client.v1("GET", "/dead-letters"))["tasks"]
        assert (dead["id"], dead["error"], dead["status"]) == (task_id, "it broke", "error")
        await client.v1("GET", f"/tasks/{task_id}/result", expect=409)
        told = await client.v1("POST", "/tasks/retry", {"ids": [task_id, 999]})
        assert told["results"][0]["outcome"] == "done"
        assert told["results"][1]["error"]["code"] == "unknown_task"
        [run] = await worker.until_runs(1)
        told = await client.v1("POST", f"/tasks/{task_id}/cancel", expect=202)
        assert told["outcome"] == "asked"
        await worker.finish(run)
        await client.v1("POST", f"/tasks/{task_id}/cancel", expect=409)
        await client.v1("POST", f"/tasks/{task_id}/retry", expect=409)
        await client.v1("POST", "/tasks/999/cancel", expect=404)


async def test_a_wait_that_is_over_tells_how_the_task_is() -> None:
    async with asked(settings=HttpSettings(waits_max=1)) as client:
        [task_id] = await submitted(client.broker, Spec("a"))
        path = f"/tasks/{task_id}/wait"
        told = await client.v1("GET", path, timeout_ms=1, expect=202)
        assert told["status"] == "waiting"
        waiting = asyncio.create_task(client.v1("GET", path))
        for _ in range(100):
            await asyncio.sleep(0)
        busy = await client.v1("GET", path, timeout_ms=1, expect=503)
        assert busy["error"]["retryable"] is True
        await client.v1("POST", f"/tasks/{task_id}/cancel")
        assert (await waiting)["status"] == "cancelled"


async def test_transactions_are_committed_rolled_back_and_unknown_afterwards() -> None:
    async with asked() as client:
        number = (await client.v1("POST", "/transactions", expect=201))["transaction"]
        made = await client.v1("POST", "/tasks", {"type": "t"}, transaction=number, expect=201)
        [shown] = (await client.v1("GET", "/transactions"))["transactions"]
        assert (shown["transaction"], shown["tasks"]) == (number, 1)
        assert (await client.v1("POST", f"/transactions/{number}/commit"))["tasks"] == 1
        assert client.broker.get(made["id"]).status is Status.WAITING
        await client.v1("POST", f"/transactions/{number}/commit", expect=404)
        other = await client.v1("POST", "/transactions", {"ttl_ms": 5_000}, expect=201)
        await client.v1("POST", f"/transactions/{other['transaction']}/rollback")
        told = await client.v1(
            "POST", "/tasks", {"type": "t"}, transaction=other["transaction"], expect=404
        )
        assert told["error"]["code"] == "unknown_transaction"


async def test_schedules_are_put_paused_resumed_shown_and_removed() -> None:
    async with asked() as client:
        wanted = {"task": {"type": "sweep"}, "cron": "5 4 * * *", "zone": "Europe/Rome"}
        made = await client.v1("PUT", "/schedules/nightly", wanted)
        assert (made["type"], made["cron"], made["zone"]) == ("sweep", "5 4 * * *", "Europe/Rome")
        assert made["next_due_ms"] > await client.broker.now_ms()
        assert (await client.v1("POST", "/schedules/nightly/pause"))["paused"] is True
        assert (await client.v1("POST", "/schedules/nightly/resume"))["paused"] is False
        [shown] = (await client.v1("GET", "/schedules"))["schedules"]
        assert shown["name"] == "nightly"
        for wrong in (
            {"task": {"type": "t"}},
            {"task": {"type": "t"}, "cron": "no cron at all"},
            {"task": {"type": "t"}, "cron": "5 4 * * *", "zone": "Nowhere/Town"},
            {"task": {"type": ""}, "interval_ms": 5},
        ):
            await client.v1("PUT", "/schedules/other", wrong, expect=400)
        await client.v1("DELETE", "/schedules/nightly")
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause")):
            await client.v1(method, f"/schedules/nightly{path}", expect=404)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("resource", "db", {"limit": 3}),
        ("type", "resize", {"limit": 3}),
        ("tenant", "elsa", {"weight": 2.5, "reserved": 1, "maximum": 4}),
        ("worker", "w1", {"places": 4, "places_by_type": {}, "resources": {}, "share_percent": 5}),
        ("mapping", "elsa", {"group": 4, "resources": ["db"], "types": {}}),
        ("mapping", "*", {"group": 2, "resources": [], "types": {}}),
        ("quota", "*", {"tasks": 3, "payload_bytes": None}),
        ("rate", "tenant:elsa/farm", {"per_second": 2.0, "burst": 3}),
    ],
)
async def test_a_setting_is_put_shown_and_taken_away(
    kind: str, name: str, value: dict[str, Any]
) -> None:
    async with asked() as client:
        path = f"/settings/{kind}/{name}"
        assert (await client.v1("PUT", path, value))["changed"] is True
        assert (await client.v1("PUT", path, value))["changed"] is False
        [shown] = (await client.v1("GET", "/settings", kind=kind))["settings"]
        assert (shown["name"], shown["value"]) == (name, value)
        assert (await client.v1("DELETE", path))["changed"] is True
        assert (await client.v1("GET", "/settings"))["settings"] == []


async def test_a_parameter_that_nobody_knows_is_refused() -> None:
    async with asked() as client:
        refused = await client.v1("GET", "/tasks", expect=400, tennant="elsa")
        assert refused["error"]["code"] == "invalid_task"
        assert "'tennant'" in refused["error"]["message"]


async def test_what_cannot_be_set_is_refused_in_words() -> None:
    async with asked() as client:
        for path, value, says in (
            ("resource/db", {"limit": -1}, "below 0"),
            ("resource/db", {"limit": "3"}, "Expected `int`"),
            ("resource/db", {"limits": 3}, "limit"),
            ("tenant/elsa", {"weight": 0}, "a weight lies"),
            ("rate/elsa", {"per_second": 1}, "tenant:NAME"),
            ("colour/elsa", {}, "there is no setting"),
        ):
            told = await client.v1("PUT", f"/settings/{path}", value, expect=400)
            assert says in told["error"]["message"], path
        await client.v1("PUT", "/settings/resource/db", b"{", expect=400)
        await client.v1("DELETE", "/settings/colour/elsa", expect=400)
        await client.v1("GET", "/settings", kind="colour", expect=400)
        assert (await client.v1("GET", "/settings"))["settings"] == []


async def test_types_and_tenants_are_paused_and_resumed() -> None:
    async with asked() as client:
        worker = await FakeWorker.connected(client.broker)
        await client.v1("POST", "/types/resize/pause", {"reason": "a bad release"})
        await client.v1("POST", "/tenants/elsa/pause")
        await submitted(client.broker, Spec("resize"), Spec("other", "elsa"), Spec("other"))
        [run] = await worker.until_runs(1)
        assert (run.type, run.tenant) == ("other", "default")
        shown = {each["name"]: each["value"] for each in await _settings(client)}
        assert shown["type:resize"] == {"reason": "a bad release"}
        for path in ("/types/resize/resume", "/tenants/elsa/resume"):
            assert (await client.v1("POST", path))["changed"] is True
        assert len(await worker.until_runs(2)) == 2


async def _settings(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.v1("GET", "/settings", kind="pause"))["settings"]
    return found


async def test_what_there_is_can_be_looked_at() -> None:
    async with asked() as client:
        await client.v1("PUT", "/settings/resource/db", {"limit": 1})
        await client.v1("PUT", "/settings/mapping/elsa", {"group": 3, "resources": ["db"]})
        await submitted(client.broker, *[Spec("t", "elsa", slot=f"s{n}") for n in range(3)])
        worker = await FakeWorker.connected(client.broker, "w1", limits=WorkerLimits(4))
        await worker.until_runs(1)
        [shown] = (await client.v1("GET", "/workers"))["workers"]
        assert (shown["worker_id"], shown["state"], shown["linked"]) == ("w1", "connected", True)
        assert (shown["running"], shown["places"]) == (1, 4)
        [queue] = (await client.v1("GET", "/queues"))["queues"]
        assert (queue["tenant"], queue["length"], queue["group"]) == ("elsa", 2, 3)
        resources = (await client.v1("GET", "/resources"))["resources"]
        assert {"kind": "resource", "name": "db", "running": 1, "limit": 1, "paused": False} in (
            resources
        )
        slots = (await client.v1("GET", "/slots", above="s0", limit=1))["slots"]
        assert [each["slot"] for each in slots] == ["s1"]
        status = await client.v1("GET", "/status")
        assert (status["mode"], status["tasks"]["waiting"]) == ("leader", 2)


async def test_who_may_act_for_one_tenant_sees_and_changes_nothing_else() -> None:
    async with asked(ELSA, ACME) as client:
        acme = client.as_user(ACME)
        own = (await acme.v1("POST", "/tasks", {"type": "t"}, expect=201))["id"]
        assert client.broker.get(own).tenant == "acme" == client.broker.get(own).submitter
        other = (await client.v1("POST", "/tasks", {"type": "t"}, expect=201))["id"]
        assert [t["id"] for t in (await acme.v1("GET", "/tasks"))["tasks"]] == [own]
        for method, path in (
            ("GET", f"/tasks/{other}"),
            ("GET", f"/tasks/{other}/wait"),
            ("POST", f"/tasks/{other}/cancel"),
            ("DELETE", f"/tasks/{other}"),
        ):
            await acme.v1(method, path, expect=404)
        await acme.v1("POST", "/tasks/cancel", {"ids": [own, other]}, expect=404)
        assert client.broker.get(own).status is Status.WAITING
        await acme.v1("POST", "/tasks", {"type": "t", "tenant": "elsa"}, expect=403)
        await acme.v1("GET", "/tasks", tenant="elsa", expect=403)
        for method, path in (
            ("PUT", "/settings/resource/db"),
            ("GET", "/schedules"),
            ("POST", "/types/t/pause"),
        ):
            told = await acme.v1(method, path, {"limit": 1}, expect=403)
            assert told["error"]["code"] == "access_denied"
        await acme.v1("POST", f"/tasks/{own}/cancel")


async def test_a_transaction_is_for_who_began_it() -> None:
    async with asked(ELSA, ACME, User("resi", "hay")) as client:
        acme, resi = client.as_user(ACME), client.as_user(User("resi", "hay"))
        number = (await acme.v1("POST", "/transactions", expect=201))["transaction"]
        for path, body in ((f"/transactions/{number}/commit", None), ("/tasks", {"type": "t"})):
            await resi.v1("POST", path, body, transaction=number, expect=404)
        told = await resi.act("submitTask", tasktype="t", transaction=number)
        assert told["ok"] is False and "no transaction" in told["error"]
        told = await resi.act("submitTasks", tasks=[{"tasktype": "t"}], transaction=number)
        assert told["ok"] is False and told["results"][0]["taskId"] == 0
        told = await resi.act("rollbackTransaction", transaction=number)
        assert told["ok"] is False
        assert (await resi.view("transactions"))["transactions"]["transactions"] == []
        await acme.v1("POST", "/tasks", {"type": "t"}, transaction=number, expect=201)
        assert (await acme.v1("POST", f"/transactions/{number}/commit"))["tasks"] == 1
        assert (await resi.view("slots"))["ok"] is False
        await resi.v1("GET", "/slots", expect=403)


async def test_names_may_have_slashes() -> None:
    async with asked() as client:
        path = "/schedules/farm%2Fnightly"
        wanted = {"task": {"type": "t"}, "interval_ms": 60_000}
        assert (await client.v1("PUT", path, wanted))["name"] == "farm/nightly"
        assert (await client.v1("POST", f"{path}/pause"))["paused"] is True
        assert (await client.v1("GET", path))["paused"] is True
        await client.v1("POST", "/tenants/acme%2Feu/pause")
        assert (await _settings(client))[0]["name"] == "tenant:acme/eu"
        await client.v1("GET", "/schedules/", expect=400)
