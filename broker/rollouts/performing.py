"""What an agent's child processes run: parts of actions, pings, and which actions there are.

The agent hands steps over under one type, whatever the node is called; its own modules, which are
imported beside this one, register the actions.
"""

from typing import Final

from broker.rollouts.actions import Verdict, actions, perform
from broker.rollouts.document import Step
from broker.worker import task

STEP_TYPE: Final = "rollout-step"
PING_TYPE: Final = "rollout-ping"
ACTIONS_TYPE: Final = "rollout-actions"


@task(name=STEP_TYPE)
def perform_step(step: Step) -> Verdict:
    """Do a part of an action."""
    return perform(step)


@task(name=PING_TYPE)
def answer_ping(number: int) -> int:
    """Show that tasks come here and go back."""
    return number


@task(name=ACTIONS_TYPE)
def tell_actions() -> dict[str, str]:
    """Tell the agent which actions its modules have, and the version of each."""
    return actions()
