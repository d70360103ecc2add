"""What the audit says of changes of users, grants and tokens."""

from pathlib import Path
from typing import Any, Final

import pytest

from engine.access.door import Caller
from engine.access.principal import NODE
from herd.types import BIGINT, TEXT
from herd.wire import messages
from herd.wire.guest import Guest
from herd.wire.messages import Failed
from herd.wire.service import HerdService
from tests.engine.access.known_users import KeptAudit
from tests.herd.wire.test_route import NodeOf
from tests.herd.wire.wiring import embedded

_GRANTS: Final[dict[str, Any]] = dict.fromkeys(("grantee", "kind", "name", "level"), TEXT)
_USERS: Final[dict[str, Any]] = {"name": TEXT, "verifier": TEXT, "made_ms": BIGINT}


@pytest.mark.parametrize("system", ["system", "SYSTEM"])
async def test_a_change_of_users_says_whose_it_is_however_the_tablespace_is_spelled(
    tmp_path: Path, system: str
) -> None:
    audit, grant = KeptAudit(), ["ann", "bucket", "letters"]
    async with embedded(tmp_path) as herd:
        await herd.make("system")
        await herd.create_table("users", _USERS, ("name",), "system")
        await herd.create_table("grants", _GRANTS, ("grantee", "kind", "name"), "system")
        guest = Guest(HerdService(NodeOf(herd), herd.workers, audit=audit), Caller(NODE))
        user = {"name": "ann", "verifier": "a proof", "made_ms": 7}
        granted = dict(zip(_GRANTS, [*grant, "write"], strict=True))
        for call in (
            messages.Put(system, "users", [user]),
            messages.Put(system, "grants", [granted]),
            messages.Update(system, "users", "ann", {"verifier": "another proof"}),
            messages.Delete(system, "grants", tuple(grant)),
            messages.Get(system, "users", ["ann"]),
        ):
            assert not isinstance(await guest.ask(call), Failed)
        await guest.close()
    assert [(event.who, event.what, event.where) for event in audit.events] == [
        ("node", "Put users ann", "tablespace system"),
        ("node", "Put grants ann bucket letters write", "tablespace system"),
        ("node", "Update users ann", "tablespace system"),
        ("node", "Delete grants ann bucket letters", "tablespace system"),
    ]
