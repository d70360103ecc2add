"""`/api/v1`: limits, weights, mappings, rates and pauses.

Invariants:
- What is for administrators is said by the route, not by the handler.
- A setting is checked before it is logged; a wrong one changes nothing.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from broker.errors import InvalidSetting
from broker.http.desk import Desk
from broker.http.routes import Ask, Route, Told
from broker.http.shapes import Changed
from broker.settings import KINDS, NAMELESS, Pause, decode_setting, encode_setting
from broker.spec import MaybeName, Name

EVERY_TENANT: Final = "*"
"""In paths and lists: the mapping, or the quota, of all tenants that have none of their own."""
_NAME: Final = {"name": Name}
_SETTING: Final = {"kind": Name, "name": Name}


class SettingsQuery(msgspec.Struct):
    """Of which kind; all without one."""

    kind: MaybeName = ""


class SettingFacts(msgspec.Struct):
    """A setting, its value as it was put."""

    kind: str
    name: str
    value: Any


class Settings(msgspec.Struct):
    """Settings."""

    settings: list[SettingFacts]


class Reason(msgspec.Struct, forbid_unknown_fields=True):
    """Why; for people."""

    reason: Annotated[str, Meta(max_length=1_000)] = ""


async def list_settings(desk: Desk, ask: Ask) -> Told:
    """All, or those of a kind."""
    kind = ask.query.kind
    if kind and kind not in KINDS:
        raise InvalidSetting(f"there is no setting {kind!r}; there are {', '.join(KINDS)}")
    found = await desk.calls.settings_of(kind)
    return Told(
        Settings(
            [
                SettingFacts(each, name or EVERY_TENANT, msgspec.Raw(encode_setting(value)))
                for each, name, value in found
            ]
        )
    )


def _name_of(ask: Ask) -> tuple[str, str]:
    kind, name = ask.path["kind"], ask.path["name"]
    return kind, "" if kind in NAMELESS and name == EVERY_TENANT else name


async def put_setting(desk: Desk, ask: Ask) -> Told:
    """Change one."""
    kind, name = _name_of(ask)
    setting = decode_setting(kind, name, bytes(ask.body))
    return Told(Changed(await desk.calls.set(kind, name, setting, ask.who.name)))


async def delete_setting(desk: Desk, ask: Ask) -> Told:
    """Take one away."""
    kind, name = _name_of(ask)
    if kind not in KINDS:
        raise InvalidSetting(f"there is no setting {kind!r}; there are {', '.join(KINDS)}")
    return Told(Changed(await desk.calls.set(kind, name, None, ask.who.name)))


def _pause(scope: str) -> Any:
    async def change(desk: Desk, ask: Ask) -> Told:
        setting = Pause(ask.body.reason if ask.body is not None else "")
        name = f"{scope}:{ask.path['name']}"
        return Told(Changed(await desk.calls.set("pause", name, setting, ask.who.name)))

    return change


def _resume(scope: str) -> Any:
    async def change(desk: Desk, ask: Ask) -> Told:
        name = f"{scope}:{ask.path['name']}"
        return Told(Changed(await desk.calls.set("pause", name, None, ask.who.name)))

    return change


def _pausing(scope: str, plural: str) -> tuple[Route, Route]:
    return (
        Route(
            "POST",
            f"/{plural}/{{name}}/pause",
            f"pause_{scope}",
            f"Let nothing more of a {scope} begin; what runs goes on.",
            _pause(scope),
            body=Reason,
            body_optional=True,
            reply=Changed,
            other_statuses=(400,),
            admin=True,
            path_kinds=_NAME,
        ),
        Route(
            "POST",
            f"/{plural}/{{name}}/resume",
            f"resume_{scope}",
            "Take a pause away.",
            _resume(scope),
            reply=Changed,
            other_statuses=(400,),
            admin=True,
            path_kinds=_NAME,
        ),
    )


ROUTES: Final = (
    Route(
        "GET",
        "/settings",
        "list_settings",
        "List settings.",
        list_settings,
        SettingsQuery,
        reply=Settings,
        other_statuses=(400,),
        admin=True,
    ),
    Route(
        "PUT",
        "/settings/{kind}/{name}",
        "put_setting",
        "Change a setting: resource, type, tenant, worker, mapping, rate, pause or quota. The "
        "mapping *, and the quota *, is that of all tenants without one.",
        put_setting,
        body=msgspec.Raw,
        reply=Changed,
        other_statuses=(400, 413),
        admin=True,
        path_kinds=_SETTING,
    ),
    Route(
        "DELETE",
        "/settings/{kind}/{name}",
        "delete_setting",
        "Take a setting away.",
        delete_setting,
        reply=Changed,
        other_statuses=(400,),
        admin=True,
        path_kinds=_SETTING,
    ),
    *_pausing("tenant", "tenants"),
    *_pausing("type", "types"),
)
