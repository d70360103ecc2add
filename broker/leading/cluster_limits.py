"""How many steps of roll-outs may act on a cluster at once, as a limit of its resource.

An operator's setting counts. Without one, the limit in the document of the roll-out that holds the
cluster counts.

Invariants:
- The limit of a roll-out follows from its row. It is stored nowhere else, so it ends with the
  roll-out, whatever else happens, and whoever leads then.
"""

import logging

import msgspec

from broker.applying import RolloutChanged
from broker.rollout_commands import RolloutRow
from broker.rollouts.document import Document
from broker.rollouts.steps import cluster_resource
from broker.scheduling import Scheduler
from broker.settings import Limit

_logger = logging.getLogger(__name__)


class _Head(msgspec.Struct, array_like=True):
    """The beginning of a roll-out's record."""

    name: str
    document: Document


_decode_head = msgspec.msgpack.Decoder(_Head).decode


class ClusterLimits:
    """Of one term. Tells the scheduler the limit of each resource."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set: dict[str, Limit] = {}
        self._held: dict[str, tuple[str, Limit]] = {}
        """By resource: the roll-out that holds the cluster, and its limit."""

    def configure(self, resource: str, limit: Limit | None) -> None:
        """An operator has set the limit of a resource, or removed it."""
        if limit is None:
            self._set.pop(resource, None)
        else:
            self._set[resource] = limit
        self._apply(resource)

    def changed(self, change: RolloutChanged) -> None:
        """A roll-out has begun, gone on or ended."""
        self.holds(change.row)

    def holds(self, row: RolloutRow) -> None:
        """A roll-out holds its cluster, or has ended."""
        resource = cluster_resource(row.cluster)
        holder = self._held.get(resource, ("", None))[0]
        if row.ended:
            if holder == row.name:
                del self._held[resource]
                self._apply(resource)
        elif holder != row.name:
            try:
                document = _decode_head(row.record).document
            except msgspec.MsgspecError as error:
                # Written by a newer version: its coordinator still keeps to the limit.
                _logger.warning("the limit of roll-out %s cannot be read: %s", row.name, error)
                return
            self._held[resource] = row.name, Limit(document.limit)
            self._apply(resource)

    def _apply(self, resource: str) -> None:
        limit = self._set.get(resource)
        if limit is None and resource in self._held:
            limit = self._held[resource][1]
        self._scheduler.configure("resource", resource, limit)
