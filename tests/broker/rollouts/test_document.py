"""Documents are read strictly, and actions are reviewed code of the version that is asked for."""

from typing import Any

import msgspec
import pytest

from broker.errors import InvalidTask
from broker.rollouts import Action, Document, NotNow, Params, Step, action
from broker.rollouts.actions import (
    CANNOT,
    DONE,
    GO,
    HEALTHY,
    REFUSED,
    UNHEALTHY,
    WAIT,
    actions,
    perform,
)
from broker.rollouts.document import (
    CHECK_NODE,
    EXECUTE,
    POST_CHECK,
    PRE_CHECK,
    read_document,
    version_text,
)
from broker.rollouts.facts import EndKind, end_of
from broker.rollouts.performing import answer_ping, perform_step
from broker.task import Mode, Status, Task
from tests.broker.rollouts.agents import document

PUBLISHED = b"""{"action": "cassandra_task:restart", "version": 1.2, "limit": 2,
 "cluster_name": "cassandra:geo_counter", "discovery": "zookeeper:/geo", "owner": "gsi",
 "task_id": "abcd-ef123", "params": {"action_args": {"force": true},
 "workqueue_args": {"retry_count": 3}}, "nodes": [], "destnode": ""}"""


def test_the_published_fields_are_read() -> None:
    read = read_document(PUBLISHED)
    assert (read.action, read.limit, read.owner) == ("cassandra_task:restart", 2, "gsi")
    assert read.params.action_args == {"force": True} and read.queue.retry_count == 3
    assert version_text(read.version) == version_text("1.2") == "1.2"
    assert read_document(read) == read
    assert msgspec.json.decode(msgspec.json.encode(read), type=Document) == read


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"code": "import os"}, "unknown field"),
        ({"limit": 0}, ">= 1"),
        ({"limit": 3}, "leaves none alone"),
        ({"limit": "2"}, "Expected `int`"),
        ({"nodes": ["a", "a", "b"]}, "named twice"),
        ({"nodes": ["a/b", "c"]}, "no node"),
        ({"nodes": []}, "neither nodes nor a discovery"),
        ({"destnode": "a"}, "destnode is filled in"),
        ({"params": {"action_args": {"x": "y" * 70_000}}}, "65,536 bytes"),
        ({"params": {"workqueue_args": {"retries": 1}}}, "unknown field"),
        ({"params": {"action_args": {"x": object()}}}, "unsupported"),
        ({"task_id": "a b"}, "regex"),
        ({"version": None}, "version"),
    ],
)
def test_what_is_not_published_or_out_of_bounds_is_refused(more: Any, said: str) -> None:
    with pytest.raises(InvalidTask, match=said):
        read_document(document("a", "b", "c", **more))


def test_one_node_alone_may_be_all_there_is() -> None:
    assert read_document(document("a", limit=1)).nodes == ["a"]


@action("test:all", version=1.2)
class All(Action):
    """Does as its arguments say."""

    def _say(self, part: str) -> bool | None:
        said = self.step.arguments.get(part, True)
        if isinstance(said, str):
            raise NotNow(said) if said == "not now" else RuntimeError(said)
        answer: bool | None = said
        return answer

    def pre_check(self) -> bool | None:
        return self._say("pre")

    def execute(self) -> None:
        self._say("do")

    def post_check(self) -> bool | None:
        return self._say("post")


def step(part: str, name: str = "test:all", version: Any = "1.2", **arguments: Any) -> Step:
    made = Document(
        action=name,
        version=version,
        limit=1,
        cluster_name="geo",
        params=Params(action_args=arguments),
        destnode="a",
    )
    return Step(part=part, document=made, node="a")


@pytest.mark.parametrize(
    ("asked", "verdict", "why"),
    [
        (step(PRE_CHECK), GO, ""),
        (step(PRE_CHECK, pre=None), GO, ""),
        (step(PRE_CHECK, pre=False), WAIT, "the check said no"),
        (step(PRE_CHECK, pre="not now"), WAIT, "not now"),
        (step(PRE_CHECK, pre="broken"), WAIT, "RuntimeError: broken"),
        (step(POST_CHECK), HEALTHY, ""),
        (step(POST_CHECK, post="not now"), UNHEALTHY, "not now"),
        (step(EXECUTE), DONE, ""),
        (step(CHECK_NODE), CANNOT, "the action has no check_node"),
        (step(PRE_CHECK, version=1.3), REFUSED, "this agent has version 1.2 of it, not 1.3"),
        (step(EXECUTE, version=2), REFUSED, "this agent has version 1.2 of it, not 2"),
        (step(PRE_CHECK, "os:system"), REFUSED, "this agent knows no action os:system"),
        (step("rm -rf"), REFUSED, "this agent knows no rm -rf"),
    ],
)
def test_a_part_comes_to_a_verdict(asked: Step, verdict: str, why: str) -> None:
    told = perform_step(asked)
    assert (told.verdict, told.why) == (verdict, why)


def test_an_action_that_fails_raises_and_names_stay_with_their_class() -> None:
    with pytest.raises(RuntimeError, match="it broke"):
        perform(step(EXECUTE, do="it broke"))
    assert actions()["test:all"] == "1.2"
    with pytest.raises(InvalidTask, match="the action test:all is All"):
        action("test:all", version=1)(Action)
    assert action("test:all", version=1.2)(All) is All
    assert answer_ping(7) == 7


def ended(status: Status, **more: Any) -> Task:
    return Task(1, "t", "rollout:a", status, mode=Mode.AT_MOST_ONCE, **more)


def test_only_an_agents_own_word_says_how_far_an_action_came() -> None:
    found = {
        "none": end_of(None),
        "running": end_of(ended(Status.RUNNING, attempt=1)),
        "failed": end_of(ended(Status.ERROR, attempt=1, session=3, error="it broke\nline 2")),
        "died": end_of(ended(Status.ERROR, attempt=1, session=0, error="worker died")),
        "late": end_of(ended(Status.ERROR, attempt=1, session=3, error="deadline_expired")),
        "unbegun": end_of(ended(Status.ERROR, error="deadline_expired")),
        "withdrawn": end_of(ended(Status.CANCELLED)),
        "cancelled": end_of(ended(Status.CANCELLED, attempt=1, session=3)),
        "lost": end_of(ended(Status.LOST, attempt=1)),
        "odd": end_of(ended(Status.FINISHED, attempt=1, session=3), b"moo"),
        "done": end_of(ended(Status.FINISHED, attempt=1), b'{"verdict":"done"}'),
    }
    assert {name: end and end.kind for name, end in found.items()} == {
        "none": EndKind.LOST,
        "running": None,
        "failed": EndKind.FAILED,
        "died": EndKind.LOST,
        "late": EndKind.LOST,
        "unbegun": EndKind.UNBEGUN,
        "withdrawn": EndKind.UNBEGUN,
        "cancelled": EndKind.LOST,
        "lost": EndKind.LOST,
        "odd": EndKind.FAILED,
        "done": EndKind.VERDICT,
    }
    assert found["failed"] is not None and found["failed"].why == "it broke"
