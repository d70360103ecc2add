"""Why nothing was done to a task that was to be cancelled, begun anew or deleted, in words."""

from collections.abc import Sequence

from broker.calls import Calls
from broker.commands import Answer, Refusal
from broker.errors import BrokerError, NotInState, UnknownTask

CANCEL = "cancelled"
RETRY = "begun anew"
DELETE = "deleted"


async def refusal_of(
    calls: Calls, task_id: int, answer: Answer | Refusal, what: str
) -> BrokerError | None:
    """The error that an answer is, which names the task's state; None: it was done."""
    if isinstance(answer, Refusal):
        return answer.error
    if answer is Answer.UNKNOWN:
        return UnknownTask(f"there is no task {task_id}", task_id=task_id)
    if answer not in (Answer.NOT_NOW, Answer.STALE):
        return None
    try:
        state = (await calls.task(task_id)).status.name.lower()
    except UnknownTask as error:
        return error
    return NotInState(f"task {task_id} is {state} and cannot be {what}", task_id=task_id)


async def check_answers(
    calls: Calls, ids: Sequence[int], answers: Sequence[Answer | Refusal], what: str
) -> None:
    """Raise what was refused first of many."""
    for task_id, answer in zip(ids, answers, strict=True):
        error = await refusal_of(calls, task_id, answer, what)
        if error is not None:
            raise error
