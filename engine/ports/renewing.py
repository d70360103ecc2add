"""The contents of files that a process can read again: secrets, certificates, users.

SIGHUP makes it do so (`engine.ports.system_signals`); a supervisor passes it on to its processes.

Invariants:
- If a file cannot be read, or does not match the others, the contents read before stay in use.
- A value that has been read is never changed, only replaced as a whole.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")
_logger: Final = logging.getLogger(__name__)
_known: Final[WeakSet["Renewed[Any]"]] = WeakSet()
_adding: Final = threading.Lock()


class Renewed(Generic[T]):
    """The latest value of `read`, which is called now, and by `renew_all` as long as this is used.

    `check` is called with the new value and the one before, and raises if the new one does not
    match. Raises what `read` raises.
    """

    def __init__(
        self, read: Callable[[], T], check: Callable[[T, T], None] = lambda new, old: None
    ) -> None:
        self._read = read
        self._check = check
        self.value = read()
        with _adding:
            _known.add(self)

    def __repr__(self) -> str:
        return "Renewed()"

    def renew(self) -> None:
        """Read again. Raises what reading and checking raise; the value then stays as it was."""
        new = self._read()
        self._check(new, self.value)
        self.value = new


def renew_all() -> None:
    """Read everything again. For each reason that something stays as it was, the log gets one line.

    Call it on the event loop whose connections use the values.
    """
    with _adding:
        known = list(_known)
    causes: dict[str, None] = {}
    for each in known:
        try:
            each.renew()
        except Exception as error:
            # Whatever the error is, the others are still read, and the process goes on.
            causes[" ".join(str(error).split())] = None
    for cause in causes:
        _logger.error("what was read before stays in use: %s", cause)
    if known and not causes:
        _logger.info("secrets, certificates and users were read again")
