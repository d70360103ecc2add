"""Maintenance of clusters, node by node: what an agent's own modules need to say what is done."""

from broker.rollouts.actions import Action, NotNow, action
from broker.rollouts.document import Document, Params, Queue, Step

__all__ = ["Action", "Document", "NotNow", "Params", "Queue", "Step", "action"]
