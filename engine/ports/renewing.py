"""What files say that a process reads again when it is told to: secrets, certificates, users.

SIGHUP tells it (`engine.ports.system_signals`); a supervisor tells its processes.

Invariants:
- What cannot be read, or does not fit, changes nothing: what was read before stays in use.
- What has been read is replaced as a whole, never changed.
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
    """What `read` returned last. It is read now, and again by `renew_all` as long as it is used.

    `check` is called with what was just read and what was read before, and raises if the new one
    does not fit. Raises what `read` raises.
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
        """Read again. Raises what reading and checking raise; then the value is as it was."""
        new = self._read()
        self._check(new, self.value)
        self.value = new


def renew_all() -> None:
    """Read everything again. The log gets one line for each cause that something stays as it was.

    Call it on the event loop whose connections use what is read.
    """
    with _adding:
        known = list(_known)
    causes: dict[str, None] = {}
    for each in known:
        try:
            each.renew()
        except Exception as error:
            # Whatever it is, it keeps nobody else from reading, and ends no process.
            causes[" ".join(str(error).split())] = None
    for cause in causes:
        _logger.error("what was read before stays in use: %s", cause)
    if known and not causes:
        _logger.info("secrets, certificates and users were read again")
