"""What would prevent a node from starting, as far as can be seen without starting it: `--check`.

`herdbook.node.checking` checks the settings. This module also checks the machine: ports, folders,
certificates, keys and passwords.

Invariants:
- Nothing is created or changed, and a port is opened only for as long as the check takes.
- A refusal has the same message as at a start, because it comes from the same code.
- If a node already runs in the folder, only that is reported, and not its ports and locks.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from engine.bookie.folder import FolderIdentity
from engine.errors import (
    EngineError,
    FolderDamaged,
    FolderError,
    FolderLocked,
    FolderMismatch,
    InvalidRequest,
)
from engine.folder.lock import METADATA_NAME, check_layout
from engine.folder.owner import check_formats, check_store
from engine.ports.system_disk import SystemDisk
from engine.server import check_bookie_folder
from engine.server_settings import ServerSettings, check_listeners
from engine.transport.security import Security
from herd.errors import Error as StoreError
from herd.nodes.states import check_identity
from herdbook.herd_node import check_free
from herdbook.http.serving import ADD_USER, HttpServerSettings, check_listener, needs_users
from herdbook.http_listening import check_certificate
from herdbook.node.roles import configuration_of, http_settings
from herdbook.node.serving import listen_once, refuse_running
from herdbook.node.settings import NodeSettings, Role, listeners
from herdbook.node.status import was_killed
from herdbook.task_api import check_unserved
from herdbook.task_server import read_users

DISKS: Final = "bookie.folders"


class Refusals(NamedTuple):
    """`errors` prevent the start, `warnings` do not. Each is a line that begins with its key."""

    errors: list[str]
    warnings: list[str]


def refusals_of(settings: NodeSettings) -> Refusals:
    """The errors and warnings of a start, in addition to those of `checking.check`."""
    found = Refusals([], [])
    running = _said(refuse_running, settings.own_folder)
    if running:
        found.warnings.append(f"data: {running}")
    looks: list[Callable[[NodeSettings], Iterator[str]]] = [_wires, _broker, _http]
    if not running:
        looks.append(_herd if settings.clustered else _store)
        # Processes of a killed node may still hold its ports for a moment; a start waits for them.
        lines = found.warnings if was_killed(settings.own_folder) else found.errors
        lines.extend(_ports(settings))
    for look in looks:
        found.errors.extend(look(settings))
    if settings.clustered and Role.BOOKIE in settings.roles and not running:
        _bookies(settings, found)
    if Role.HTTP in settings.roles and needs_users(http_settings(settings)):
        found.warnings.append(
            f"http.listen: other machines can reach {settings.http.listen}: until the store "
            f"has a user it answers 503: {ADD_USER}"
        )
    return found


def _said(check: Callable[..., Any], *arguments: Any) -> str:
    """The error of a check in one line; "" if there is none."""
    try:
        check(*arguments)
    except (EngineError, StoreError, OSError) as error:
        return " ".join(str(error).split())
    return ""


def _keyed(key: str, check: Callable[..., Any], *arguments: Any) -> Iterator[str]:
    if why := _said(check, *arguments):
        yield f"{key}: {why}"


# Certificates, secrets, users


def _wires(settings: NodeSettings) -> Iterator[str]:
    """Secret, password and certificates for connections between machines."""
    configuration = configuration_of(settings)
    yield from _keyed("zookeeper", configuration.make_zookeeper)
    try:
        security = configuration.make_security().as_node()
    except EngineError as error:
        yield f"security: {error}"
        return
    if settings.clustered:
        said = [_said(security.server_context), _said(security.binding)]
        said.append("" if said[0] else _said(security.client_context))
        yield from (f"security: {why}" for why in dict.fromkeys(filter(None, said)))
        if Role.BOOKIE in settings.roles:
            yield from _bookie_addresses(settings, security)


def _bookie_addresses(settings: NodeSettings, security: Security) -> Iterator[str]:
    table = settings.bookie
    served = ServerSettings(
        listen=table.listen,
        grpc=table.grpc,
        advertise=table.advertise,
        advertise_grpc=table.advertise_grpc,
        # The check of the settings also checks whether unknown clients could write.
        insecure=True,
    )
    yield from _keyed("bookie", check_listeners, served, security)


def _broker(settings: NodeSettings) -> Iterator[str]:
    table = settings.broker
    if Role.BROKER not in settings.roles:
        return
    if table.users:
        yield from _keyed("broker.users", read_users, Path(table.users))
    if table.certificate and table.private_key:
        files = Path(table.certificate), Path(table.private_key)
        yield from _keyed("broker.certificate", check_certificate, *files)
    if not settings.clustered and settings.data:
        yield from _keyed("broker", check_unserved, Path(settings.data))


def _http(settings: NodeSettings) -> Iterator[str]:
    if Role.HTTP not in settings.roles:
        return
    served: HttpServerSettings = http_settings(settings)
    if served.certificate is not None and served.private_key is not None:
        yield from _keyed("http.certificate", check_certificate, *served.tls)
    yield from _keyed("http.listen", check_listener, served)


# Ports


def _ports(settings: NodeSettings) -> Iterator[str]:
    for key, _, address in listeners(settings):
        yield from _keyed(key, partial(_listen, key, address))


def _listen(key: str, address: str) -> None:
    try:
        listen_once(key, address)
    except OSError as error:
        raise InvalidRequest(f"cannot listen at {address}: {error}") from error


# Folders


def _store(settings: NodeSettings) -> Iterator[str]:
    """The folder that the node serves, or will create."""
    folder = Path(settings.data)
    if settings.data and folder.is_dir():
        why = _said(check_store, folder)
        if not why and not (folder / METADATA_NAME).exists():
            why = _said(check_layout, folder)
        why = why or _said(check_formats, folder, SystemDisk)
        if why:
            yield f"data: {why}"


def _herd(settings: NodeSettings) -> Iterator[str]:
    if Role.HERD in settings.roles and settings.data:
        yield from _keyed("data", check_free, settings.folder(Role.HERD))


def _bookies(settings: NodeSettings, found: Refusals) -> None:
    """The folders of bookies; a damaged one is left out if there are others."""
    left_out: list[str] = []
    identities: dict[str, FolderIdentity] = {}
    folders = settings.bookie_folders()
    for folder in folders:
        try:
            identity = check_bookie_folder(folder)
        except (FolderLocked, FolderMismatch) as error:
            found.errors.append(f"{DISKS}: {error}")
        except (FolderDamaged, OSError) as error:
            left_out.append(f"{DISKS}: the bookie in {folder} does not start: {error}")
        except FolderError as error:
            found.errors.append(f"{DISKS}: {folder}: {error}")
        else:
            if identity is not None:
                identities[str(folder)] = identity
    lines = found.errors if len(left_out) == len(folders) else found.warnings
    lines.extend(left_out)
    found.errors.extend(_unlike(identities))
    if Role.HERD in settings.roles and identities:
        cluster_id = next(iter(identities.values())).cluster_id
        found.errors.extend(_keyed("data", check_identity, settings.folder(Role.HERD), cluster_id))


def _unlike(identities: dict[str, FolderIdentity]) -> Iterator[str]:
    """Copies, and folders of several clusters."""
    seen: dict[str, str] = {}
    for folder, identity in identities.items():
        if identity.bookie_id in seen:
            yield f"{DISKS}: {folder} is a copy of another folder: remove one of them"
        seen[identity.bookie_id] = folder
    clusters = {each.cluster_id: folder for folder, each in identities.items()}
    if len(clusters) > 1:
        told = ", ".join(f"{folder} to {name}" for name, folder in clusters.items())
        yield f"{DISKS}: they belong to several clusters: {told}"
