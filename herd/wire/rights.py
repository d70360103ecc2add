"""What each call over the wire needs, by its kind.

Invariants:
- A call that stands in no table here is refused to users: a new one is no hole.
- Calls of a session are judged by the session, whose tablespace was judged when it was opened.
"""

from typing import Final

from engine.access.principal import Principal, Right
from engine.errors import AccessRefused
from herd.errors import AccessDenied
from herd.permits import check_right
from herd.wire import messages

OF_A_TABLESPACE: Final[dict[type, Right]] = {
    messages.Open: "read",
    messages.Outcome: "read",
    messages.Describe: "read",
    messages.Get: "read",
    messages.Scan: "read",
    messages.Put: "write",
    messages.Update: "write",
    messages.Delete: "write",
    messages.MakeTable: "admin",
}
OF_A_SESSION: Final = frozenset(
    {
        *(messages.Execute, messages.ExecuteMany, messages.Begin, messages.Commit),
        *(messages.Rollback, messages.Close, messages.Fetch, messages.Renew),
    }
)
OF_ANYBODY: Final = frozenset({messages.Names, messages.ReadToken})
"""Their answers are cut to what the caller may read."""


def check_call(principal: Principal, call: messages.Call) -> None:
    """Raise `AccessDenied` for a call that its caller may not make."""
    if principal.admin:
        return
    kind = type(call)
    right = OF_A_TABLESPACE.get(kind)
    if right is not None:
        locks = isinstance(call, messages.Get) and call.locks
        tablespace = getattr(call, "tablespace", "")
        check_right(principal, tablespace, "write" if locks else right)
    elif kind not in OF_A_SESSION and kind not in OF_ANYBODY:
        try:
            principal.check_admin()
        except AccessRefused as error:
            raise AccessDenied(str(error), hint="ask an administrator to do it") from None
