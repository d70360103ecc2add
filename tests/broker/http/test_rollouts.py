"""Roll-outs by `/api/v1`."""

from broker.rollouts.coordinator import Coordinator
from broker.rollouts.rollouts import AsyncRollouts
from tests.broker.http.asking import ACME, ELSA, asked
from tests.broker.rollouts.agents import Herd, agents, document


async def test_a_roll_out_is_started_watched_and_forgotten() -> None:
    async with asked(ELSA, ACME) as client:
        coordinator = Coordinator(client.broker)
        herd = Herd()
        living = await agents(client.broker, herd, "a", "b")
        wanted = document("a", "b", task_id="geo/1")
        refused = await client.v1("POST", "/rollouts", wanted, expect=400)
        assert "task_id" in refused["error"]["message"]
        wanted["task_id"] = "geo-1"
        started = await client.v1("POST", "/rollouts", wanted, expect=201)
        assert started == {"name": "geo-1"}
        await client.v1("POST", "/rollouts", wanted, expect=409)
        busy = await client.v1("POST", "/rollouts", document("c"), expect=409)
        assert busy["error"]["code"] == "cluster_busy"
        await client.v1("POST", "/rollouts/geo-1/pause", expect=409)
        coordinator.start()
        await AsyncRollouts(client.broker).wait("geo-1", 30_000)
        whole = await client.v1("GET", "/rollouts/geo-1")
        assert (whole["done"], whole["counted"], whole["breaker"]) == (2, 0, "closed")
        assert [(each["node"], each["phase"]) for each in whole["each"]] == [
            ("a", "done"),
            ("b", "done"),
        ]
        [listed] = (await client.v1("GET", "/rollouts"))["rollouts"]
        assert listed["name"] == "geo-1" and listed["owner"] == "storage"
        notes = (await client.v1("GET", "/rollouts/geo-1/notes"))["notes"]
        assert notes[0]["by"] == "elsa" and notes[-1]["text"] == "finished: 2 done, 0 skipped"
        for what in ("cancel", "resume"):
            await client.v1("POST", f"/rollouts/geo-1/{what}", expect=409)
        await client.v1("POST", "/rollouts/geo-1/clear", {"node": "a"}, expect=409)
        await client.v1("POST", "/rollouts/geo-1/clear", {"node": "x"}, expect=400)
        await client.v1("DELETE", "/rollouts/geo-1")
        await client.v1("GET", "/rollouts/geo-1/notes", expect=404)
        await coordinator.close()
        for each in living:
            await each.die()


async def test_the_name_that_a_roll_out_is_given_can_be_read_again() -> None:
    async with asked() as client:
        wanted = {**document("a"), "cluster_name": "geo / north"}
        started = await client.v1("POST", "/rollouts", wanted, expect=201)
        assert started["name"].startswith("geo---north-")
        [listed] = (await client.v1("GET", "/rollouts"))["rollouts"]
        assert (listed["name"], listed["cluster_name"]) == (started["name"], "geo / north")


async def test_only_administrators_see_and_change_roll_outs() -> None:
    async with asked(ELSA, ACME) as client:
        other = client.as_user(ACME)
        await other.v1("POST", "/rollouts", document("a"), expect=403)
        await other.v1("GET", "/rollouts", expect=403)
        told = await client.v1("POST", "/rollouts", {**document("a"), "code": "rm"}, expect=400)
        assert "code" in told["error"]["message"]
        task = {"type": "rollout:a", "tenant": "acme"}
        told = await other.v1("POST", "/tasks", task, expect=400)
        assert "roll-outs" in told["error"]["message"]
