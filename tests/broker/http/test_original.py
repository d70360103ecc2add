"""`/majordodo`: views and actions as their clients know them."""

import base64
import json
from collections.abc import AsyncIterator

from broker.commands import Spec
from broker.connection import WorkerLimits
from broker.settings import Limit, Mapping
from broker.task import Mode, Status
from tests.broker.http.asking import ACME, ELSA, Client, asked
from tests.broker.service.yard import FakeWorker, submitted

STATUS_FIELDS = {
    "clusterMode",
    "currentLedgerId",
    "currentSequenceNumber",
    "tasks",
    "pendingTasks",
    "runningTasks",
    "waitingTasks",
    "delayedTasks",
    "errorTasks",
    "finishedTasks",
}
TASK_FIELDS = {
    "taskId",
    "userId",
    "deadline",
    "requestedStartTime",
    "createdTimestamp",
    "maxattempts",
    "attempts",
    "tasktype",
    "workerId",
    "result",
    "slot",
    "data",
    "status",
    "mode",
}


async def test_a_task_is_submitted_runs_and_is_looked_at() -> None:
    async with asked() as client:
        told = await client.act("submitTask", tasktype="resize", userid="elsa", data="x.jpg")
        assert (told["ok"], told["result"], told["outcome"], told["error"]) == (True, *[None] * 3)
        assert set(told["status"]) == STATUS_FIELDS
        task = (await client.view("task", taskId=told["taskId"]))["task"]
        assert set(task) == TASK_FIELDS
        assert (task["status"], task["data"], task["userId"]) == ("waiting", "x.jpg", "elsa")
        assert (task["maxattempts"], task["attempts"], task["slot"]) == (1, 0, None)
        worker = await FakeWorker.connected(client.broker)
        await worker.finish(*await worker.until_runs(1), result=b"small.jpg")
        task = (await client.view("task", taskId=told["taskId"]))["task"]
        assert (task["status"], task["result"], task["workerId"]) == (
            "finished",
            "small.jpg",
            "worker",
        )


async def test_numbers_are_taken_as_numbers_and_as_texts_and_texts_as_numbers() -> None:
    async with asked() as client:
        due_ms = await client.broker.now_ms() + 60_000
        end_ms = due_ms + 1
        ids = [
            (await client.act("submitTask", tasktype="t", userid=7, data=5, **times))["taskId"]
            for times in (
                {"requestedStartTime": due_ms, "maxattempts": 3, "deadline": end_ms},
                {
                    "requestedStartTime": str(due_ms),
                    "maxattempts": "3",
                    "deadline": f"{due_ms + 1}",
                },
                {"requestedStartTime": float(due_ms), "maxattempts": "3", "deadline": end_ms},
            )
        ]
        for task_id in ids:
            task = client.broker.get(task_id)
            assert (task.due_ms, task.deadline_ms, task.attempts_max) == (due_ms, due_ms + 1, 3)
            assert (task.status, task.tenant, task.payload) == (Status.DELAYED, "7", b"5")
        delayed = (await client.view("delayedqueue"))["delayedqueue"]["tasks"]
        assert [each["taskId"] for each in delayed] == ids
        assert all(59_000 < each["delay"] <= 60_000 for each in delayed)


async def test_every_task_of_a_batch_has_its_own_fields_and_answer() -> None:
    async with asked() as client:
        told = await client.act(
            "submitTasks",
            mode="object",
            tasks=[
                {"tasktype": "a", "slot": "one", "mode": "factory", "maxattempts": "0"},
                {"tasktype": "b", "slot": "one"},
                {"tasktype": "c", "mode": "object", "requestedStartTime": "1"},
                {"tasktype": "", "userid": "u"},
                {"tasktype": "d", "maxattempts": "many"},
            ],
        )
        first, busy, third, nameless, wordy = told["results"]
        assert (first["result"], busy["taskId"]) == (None, 0)
        assert "slot one" in busy["result"] and busy["outcome"] == busy["result"]
        assert client.broker.get(first["taskId"]).execution == "factory"
        assert client.broker.get(third["taskId"]).execution == "object"
        assert "type" in nameless["result"] and "maxattempts is a number" in wordy["result"]
        assert told["ok"] is False and told["error"] == nameless["result"]
        assert sum((await client.broker.counts()).values()) == 2


async def test_a_busy_slot_is_an_answer_and_no_error() -> None:
    async with asked() as client:
        first = await client.act("submitTask", tasktype="t", slot="nightly")
        told = await client.act("submitTask", tasktype="t", slot="nightly")
        assert (told["ok"], told["taskId"], told["error"]) == (True, 0, None)
        assert str(first["taskId"]) in told["outcome"]
        assert (await client.view("slots"))["slots"] == {"busySlots": {"nightly": first["taskId"]}}


async def test_one_attempt_means_at_most_once() -> None:
    async with asked() as client:
        once = await client.act("submitTask", tasktype="t")
        often = await client.act("submitTask", tasktype="t", maxattempts="0", attempt="4")
        assert client.broker.get(once["taskId"]).mode is Mode.AT_MOST_ONCE
        task = client.broker.get(often["taskId"])
        assert (task.mode, task.attempts_spent) == (Mode.AT_LEAST_ONCE, 4)


async def test_tasks_of_a_transaction_wait_for_its_commit() -> None:
    async with asked() as client:
        number = (await client.act("beginTransaction"))["transaction"]
        told = await client.act("submitTask", tasktype="t", transaction=str(number))
        more = await client.act("submitTasks", transaction=number, tasks=[{"tasktype": "u"}])
        assert more["results"][0]["transaction"] == number
        [shown] = (await client.view("transactions"))["transactions"]["transactions"]
        assert (shown["transactionId"], shown["preparedTasks"]) == (number, 2)
        assert shown["taskTypes"] == ["t", "u"]
        assert (await client.act("commitTransaction", transaction=number))["ok"] is True
        assert client.broker.get(told["taskId"]).status is Status.WAITING
        again = await client.act("commitTransaction", transaction=number)
        assert again["ok"] is False and again["error"].startswith(f"no transaction {number}")
        late = await client.act("submitTask", tasktype="t", slot="held", transaction=number)
        assert late["ok"] is False and late["taskId"] == 0 and "no transaction" in late["error"]
        assert (await client.view("slots"))["slots"]["busySlots"] == {}
        other = (await client.act("beginTransaction"))["transaction"]
        await client.act("submitTask", tasktype="t", slot="held", transaction=other)
        assert (await client.act("rollbackTransaction", transaction=str(other)))["ok"] is True
        assert (await client.view("slots"))["slots"]["busySlots"] == {}


async def test_the_views_have_the_published_fields() -> None:
    async with asked() as client:
        broker = client.broker
        await broker.set("mapping", "elsa", Mapping(7, ("db",)))
        await broker.set("resource", "db", Limit(1))
        await submitted(broker, *[Spec("resize", "elsa") for _ in range(3)])
        limits = WorkerLimits(9, resource_limits={"db": 5})
        worker = await FakeWorker.connected(broker, "w1", limits=limits)
        await worker.until_runs(1)
        for name in ("overview", "workers"):
            [shown] = (await client.view(name))["workers"]
            assert (shown["id"], shown["status"], shown["processId"]) == (
                "w1",
                "CONNECTED",
                "first",
            )
            assert set(shown) == {"id", "location", "processId", "lastConnectionTs", "status"}
        db = {"id": "db", "runningTasks": 1, "actualLimit": 1}
        assert (await client.view("resources"))["resources"] == [db]
        of_one = (await client.view("resources", workerId="w1"))["resources"]
        assert of_one == [{**db, "actualLimit": 5}]
        heap = (await client.view("tasksheap"))["tasksheap"]["tasks"]
        assert [each["taskType"] for each in heap] == ["resize", "resize"]
        assert [each["group"] for each in heap] == [7, 7]
        told = await client.view("status")
        assert (told["status"], told["runningtasks"], told["waitingtasks"]) == ("LEADER", 1, 2)
        assert isinstance(told["currentLedgerId"], str) and told["version"]
        counted = await client.view("tasksoverview", filter="waiting")
        assert (counted["tasks"], counted["count"]) == ({"resize": 2}, 2)
        assert await client.ask("GET", "/majordodo", view="no such view") == {"ok": "true"}


async def test_tasks_are_found_by_status_user_in_any_case_type_worker_and_slot() -> None:
    async with asked() as client:
        await submitted(client.broker, Spec("a", "Elsa"), Spec("b", "resi", slot="one"))
        for query, count in (
            ({"userId": "elsa"}, 1),
            ({"status": "waiting"}, 2),
            ({"status": "running"}, 0),
            ({"tasktype": "b", "slot": "one"}, 1),
            ({"workerId": "none"}, 0),
            ({"max": "1"}, 1),
        ):
            told = await client.view("tasks", **query)
            assert (told["count"], len(told["tasks"])) == (count, count), query
        wrong = await client.view("tasks", status="sleeping")
        assert wrong["ok"] is False and "status is all" in wrong["error"]
        assert "max is a number" in (await client.view("tasks", max="ten"))["error"]
        for unknown in ("999", "0", "-1", "x" * 30, ""):
            told = await client.view("task", taskId=unknown)
            assert told.get("task", {}) == {}


async def test_a_list_of_big_tasks_ends_before_it_is_too_long() -> None:
    async with asked() as client:
        for _ in range(20):
            await submitted(client.broker, Spec("big", payload=b"x" * 1_000_000))
        assert (await client.view("tasks"))["count"] == 17


async def test_a_code_pool_is_kept_shown_and_removed_by_administrators_alone() -> None:
    async with asked(ELSA, ACME) as client:
        data = base64.b64encode(b"zip" * 500_000).decode()
        acme = client.as_user(ACME)
        for action in ("createCodePool", "deleteCodePool"):
            told = await acme.act(action, id="pool", data=data)
            assert told["ok"] is False and "no administrator" in told["error"]
        made = await client.act("createCodePool", id="pool", ttl="60000", data=data)
        assert (made["ok"], made["result"]) == (True, None)
        shown = (await client.view("codePool", codePoolId="pool"))["codePool"]
        assert (shown["codePoolId"], shown["ttl"]) == ("pool", 60_000)
        refused = await acme.view("codePool", codePoolId="pool")
        assert refused["ok"] is False and "no administrator" in refused["error"]
        assert "no base64" in (await client.act("createCodePool", id="p", data="!"))["error"]
        assert (await client.act("deleteCodePool", id="pool"))["ok"] is True
        assert (await client.act("deleteCodePool", id="pool"))["ok"] is False
        assert (await client.view("codePool", codePoolId="pool"))["codePool"] == {}


async def test_what_is_malformed_is_one_sentence_and_changes_nothing() -> None:
    async with asked() as client:
        bodies = (
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"action":"fly"}',
            b'{"action":"submitTasks"}',
            b'{"action":"submitTasks","tasks":[1]}',
            b'{"action":"submitTask","tasktype":["t"]}',
            b'{"action":"submitTask","tasktype":"t","requestedStartTime":true}',
            b'{"action":"submitTask","tasktype":"t","deadline":"1e9"}',
            b'{"action":"submitTask","tasktype":"t","transaction":"99999999999999999999"}',
            b'{"action":"commitTransaction","transaction":{}}',
            b'{"action":"submitTask","tasktype":"t","codePoolId":"nowhere"}',
            b'{"action":"submitTask","tasktype":"t","requestedStartTime":9,"deadline":5}',
        )
        before = client.broker.replica.position
        for body in bodies[:-2]:
            told = await client.ask("POST", "/majordodo", body)
            assert told["ok"] is False, body
            assert "\n" not in told["error"] and "Traceback" not in told["error"]
        assert client.broker.replica.position == before
        for body in bodies[-2:]:
            assert (await client.ask("POST", "/majordodo", body))["ok"] is False
        assert sum((await client.broker.counts()).values()) == 0


async def test_a_body_in_chunks_is_a_body() -> None:
    async with asked() as client:
        content = json.dumps(
            {"action": "submitTask", "tasktype": "t", "data": "x" * 5_000}
        ).encode()

        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(content), 1_000):
                yield content[at : at + 1_000]

        reply = await client.http.post("/majordodo", content=chunks())
        assert reply.json()["ok"] is True
        assert "content-length" not in reply.request.headers


async def test_everything_needs_a_login_once_there_is_a_user() -> None:
    async with asked(ELSA, ACME) as client:
        nobody = Client(client.app)
        for request in (("GET", "/majordodo"), ("POST", "/majordodo")):
            reply = await nobody.http.request(*request, content=b"{}")
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"].startswith("Basic")
        told = await client.as_user(ACME).act("submitTask", tasktype="t", userid="elsa")
        assert told["ok"] is False and "only act for the tenant acme" in told["error"]
        own = await client.as_user(ACME).act("submitTask", tasktype="t")
        assert client.broker.get(own["taskId"]).tenant == "acme"
        other = await client.act("submitTask", tasktype="t", userid="resi")
        listed = await client.as_user(ACME).view("tasks")
        assert [each["taskId"] for each in listed["tasks"]] == [own["taskId"]]
        hidden = await client.as_user(ACME).view("task", taskId=other["taskId"])
        assert hidden["task"] == {}
