"""Where a tenant's tasks run: a table that operators change, and a function of the user's.

Invariants:
- What was fixed at submit counts first, then the tenant's row in the table, then the function, then
  the table's row for all others, then the usual group without resources.
- A function that fails changes nothing for the others: its tasks go where the table says.
- No target names a resource twice, or holds what the log would not take.
"""

from typing import Protocol

from broker.scheduling.queues import QueueKey
from broker.settings import Mapping, Target, wrong_target


class UserMapping(Protocol):
    """The user's function. It must be quick, and is asked when a queue begins and after `remap`."""

    def __call__(self, tenant: str, type: str, /) -> Target:
        """The group and the resources of a tenant's tasks of a type."""
        ...


class MappingTable:
    """All that says where tasks run. `failure`: what the function raised last, empty: nothing."""

    def __init__(self, function: UserMapping | None = None) -> None:
        self.function = function
        self.failure = ""
        self._rows: dict[str, Mapping] = {}

    def set(self, tenant: str, row: Mapping | None) -> None:
        """Another row for a tenant, or for all who have none: the empty name."""
        if row is None:
            self._rows.pop(tenant, None)
        else:
            self._rows[tenant] = row

    def target(self, key: QueueKey) -> Target:
        """Where the tasks of a queue run."""
        if key.group:
            return Target(key.group, tuple(dict.fromkeys(key.resources)))
        found = self._mapped(key.tenant, key.type)
        return Target(found.group, tuple(dict.fromkeys(found.resources)))

    def _mapped(self, tenant: str, type_: str) -> Target:
        row = self._rows.get(tenant)
        if row is None and self.function is not None:
            try:
                found = self.function(tenant, type_)
                wrong = wrong_target(found)
                if not wrong:
                    return found
                self.failure = f"mapping {tenant!r}, {type_!r}: {wrong}"
            except Exception as error:  # whatever the user's function raises
                self.failure = f"mapping {tenant!r}, {type_!r}: {error!r}"
        if row is None:
            row = self._rows.get("")
        if row is None:
            return Target()
        return row.types.get(type_) or Target(row.group, row.resources)
