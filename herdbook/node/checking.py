"""Whether what a node is told can be so. Nothing is made or listened at by looking.

Invariants:
- Every reason is told, not the first one alone.
- Of several disks of bookies one that cannot be used is no reason: the others hold what it held.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from engine.access.secret_files import shared_secrets_in, why_not_private
from engine.errors import InvalidRequest
from engine.folder.naming import refuse_url
from engine.metadata.cluster_url import SCHEME, parse_url
from engine.metadata.zookeeper_settings import unencrypted_password
from engine.ports.system_files import FEW, raise_files_max
from engine.ports.system_latency import CpuLatency
from engine.transport.address import is_loopback, parse_host_port
from engine.transport.security import Security
from herdbook.http_proxies import Proxies
from herdbook.node.reading import KEYS, gather
from herdbook.node.settings import (
    EVERYWHERE,
    FILE,
    PLACE,
    BrokerTable,
    NodeSettings,
    Role,
    listeners,
)

PAIRS: Final = ("security", "zookeeper", "broker", "http")
"""Tables with a certificate and its key."""
SECRETS: Final = ("secret_file", "password_file", "private_key", "users")
"""Keys of files that no other user may read."""
DISKS: Final = "bookie.folders"


class SettingsWrong(InvalidRequest):
    """What a node is told cannot be so. `errors` has a line for each reason."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


def read_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> NodeSettings:
    """What a file, the environment and flags say together, the later over the earlier.

    Raises `SettingsWrong` with all that is wrong.
    """
    settings, errors = gather(file, environment or {}, flags or {})
    errors += check(settings)
    if errors:
        raise SettingsWrong(errors)
    return settings


def check(settings: NodeSettings) -> list[str]:
    """All that cannot be, a line each."""
    looks: tuple[Callable[[NodeSettings], Iterator[str]], ...] = (
        _roles,
        _store,
        _folders,
        _files,
        _certificates,
        _addresses,
        _doors,
        _proxies,
        _limits,
        _processors,
    )
    return [error for look in looks for error in look(settings)]


def _roles(settings: NodeSettings) -> Iterator[str]:
    if not settings.roles:
        yield f"roles: none is named; there are {', '.join(Role)}"
    for role in set(settings.roles):
        if settings.roles.count(role) > 1:
            yield f"roles: {role.value} is named twice"
    if not settings.clustered and Role.REPAIR in settings.roles:
        yield "roles: repair needs a cluster; a folder alone has nothing to copy from"


def _store(settings: NodeSettings) -> Iterator[str]:
    if settings.clustered:
        try:
            parse_url(settings.url)
        except InvalidRequest as error:
            yield f"url: {error}"
    elif settings.url:
        yield f"url: {settings.url} is no {SCHEME}host:port/path; a folder is named by data"


def _folders(settings: NodeSettings) -> Iterator[str]:
    if not settings.data:
        yield "data: it is missing; name the folder of this machine that the node keeps"
    seen: set[Path] = set()
    spared = {value for value, _ in _useless(settings)}
    for key, value in _values(settings, PLACE["kind"]):
        try:
            refuse_url(value, "a node keeps its data in a folder of this machine")
        except InvalidRequest as error:
            yield f"{key}: {error}"
            continue
        folder = Path(value).resolve()
        if folder in seen:
            yield f"{key}: {value} is named twice"
        seen.add(folder)
        if (why := _unusable(folder)) and not (key == DISKS and value in spared):
            yield f"{key}: {why}"
    if settings.data:
        yield from _apart(settings)


def _processors(settings: NodeSettings) -> Iterator[str]:
    bound_us = settings.bookie.cpu_latency_us
    if bound_us < 0 or Role.BOOKIE not in settings.roles:
        return
    if not settings.clustered:
        yield "bookie.cpu_latency_us: a node of a folder does not ask processors for anything"
        return
    try:
        CpuLatency(bound_us)
    except InvalidRequest as error:
        yield f"bookie.cpu_latency_us: {error}"


def warnings_of(settings: NodeSettings) -> list[str]:
    """What is wrong and keeps nothing from starting, a line each."""
    found = [f"{DISKS}: {why}: no bookie can start there" for _, why in _useless(settings)]
    if (files := raise_files_max()) < FEW:
        found.append(
            f"open files: a process of this node may have {files}, less than {FEW}: it refuses "
            "connections and new tablespaces early; raise LimitNOFILE= of its unit (ulimit -n)"
        )
    if settings.clustered and (why := _clear_password(settings)):
        found.append(f"zookeeper.authorities: {why}")
    return found


def _clear_password(settings: NodeSettings) -> str:
    table = settings.zookeeper
    return unencrypted_password(parse_url(settings.url).hosts, table.user, bool(table.authorities))


def _useless(settings: NodeSettings) -> list[tuple[str, str]]:
    """The bookies' folders that cannot be used, and why; none if no other one can be."""
    looked = [(value, _unusable(Path(value).resolve())) for value in settings.bookie.folders]
    found = [(value, why) for value, why in looked if why]
    return found if len(found) < len(looked) else []


def _unusable(folder: Path) -> str:
    """Why nothing can be kept in a folder, "" if it can."""
    try:
        made = next(each for each in (folder, *folder.parents) if each.exists())
        if not made.is_dir():
            return f"{made} is no folder"
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"
    return "" if os.access(made, os.W_OK | os.X_OK) else f"nothing can be written into {made}"


def _apart(settings: NodeSettings) -> Iterator[str]:
    """A bookie's folder holds nothing of others, and lies in no other but `data` itself."""
    own = [settings.own_folder, *(settings.folder(each) for each in Role if each != Role.BOOKIE)]
    told = [("data", settings.data), ("audit.folder", settings.audit.folder)]
    whole = [(name, Path(value).resolve()) for name, value in told if value]
    bookies = [(value, Path(value).resolve()) for value in settings.bookie.folders if value]
    for value, folder in bookies:
        around = {folder, *folder.parents}
        found = [str(each) for each in own if each.resolve() in around]
        found += [name for name, path in (*whole[1:], *bookies) if path in folder.parents]
        for each in found:
            yield f"bookie.folders: {value} lies in {each}: a bookie has its folder for itself"
        for name, path in whole:
            if folder in path.parents:
                yield f"bookie.folders: {name} lies in {value}: a bookie has its folder for itself"


def _files(settings: NodeSettings) -> Iterator[str]:
    for key, value in _values(settings, FILE["kind"]):
        try:
            with Path(value).open("rb") as file:
                if not file.read(1):
                    yield f"{key}: {value} is empty"
                    continue
            if key.rpartition(".")[2] in SECRETS and (why := why_not_private(Path(value))):
                yield f"{key}: {why}"
            elif key == "security.secret_file":
                secret, other = shared_secrets_in(Path(value))
                Security(secret, other_secret=other)
        except InvalidRequest as error:
            yield f"{key}: {error}"
        except OSError as error:
            yield f"{key}: {value} cannot be read: {error.strerror}"


def _certificates(settings: NodeSettings) -> Iterator[str]:
    for name in PAIRS:
        table = getattr(settings, name)
        if bool(table.certificate) != bool(table.private_key):
            missing = "private_key" if table.certificate else "certificate"
            yield f"{name}.{missing}: it is missing; a certificate and its key go together"
    if bool(settings.zookeeper.user) != bool(settings.zookeeper.password_file):
        yield "zookeeper: user and password_file go together"
    if settings.zookeeper.certificate and not settings.zookeeper.authorities:
        yield "zookeeper.authorities: missing; a client certificate needs a checked server"


def _addresses(settings: NodeSettings) -> Iterator[str]:
    ports: list[tuple[str, str, int]] = []
    for key, _, address in listeners(settings):
        try:
            host, port = parse_host_port(address)
        except InvalidRequest:
            yield f"{key}: {address} is not as host:port"
            continue
        if port:
            ports.append((key, host, port))
        elif settings.clustered and key in ("herd.listen", "broker.grpc"):
            yield f"{key}: others have to find it again after a restart: name a port, not 0"
    for (key, host, port), (other, there, same) in combinations(ports, 2):
        if port == same and (host == there or host in EVERYWHERE or there in EVERYWHERE):
            yield f"{other}: port {port} is taken already, by {key}"
    if settings.clustered and Role.BROKER in settings.roles and not settings.broker.grpc:
        yield "broker.grpc: it is missing; a broker of a cluster is known by it"
    if settings.clustered and Role.BROKER in settings.roles:
        yield from _found(settings.broker)


def _found(broker: BrokerTable) -> Iterator[str]:
    """Who is asked for tasks by other machines is found by them at HTTP, too."""
    try:
        (here, _), (there, _) = parse_host_port(broker.listen), parse_host_port(broker.grpc)
    except InvalidRequest:
        return
    if is_loopback(here) and not is_loopback(there) and not broker.advertise_http:
        yield (
            f"broker.listen: {broker.listen} is what others would dial, and find themselves: "
            "listen where they reach it, as broker.grpc does, or give broker.advertise_http"
        )


def _doors(settings: NodeSettings) -> Iterator[str]:
    """Who serves other machines asks them for a proof, or says that this is not wanted."""
    if settings.insecure:
        return
    proven = bool(settings.security.secret_file or settings.security.authorities)
    logins = settings.clustered and settings.security.secret_file and settings.broker.certificate
    for key, role, address in listeners(settings):
        if role is Role.HTTP or key.endswith(".metrics"):
            continue
        guarded, remedy = proven, "security.secret_file or authorities"
        if key == "broker.listen":
            guarded = bool(settings.broker.users or logins)
            remedy = "broker.users, or security.secret_file and broker.certificate"
        try:
            host, _ = parse_host_port(address)
        except InvalidRequest:
            continue
        if not guarded and not is_loopback(host):
            yield (
                f"{key}: whoever reaches {address} could write: give {remedy}, listen at "
                "127.0.0.1, or say insecure = true"
            )


def _proxies(settings: NodeSettings) -> Iterator[str]:
    for key, named in (
        ("broker.proxies", settings.broker.proxies),
        ("http.proxies", settings.http.proxies),
    ):
        try:
            Proxies(named)
        except InvalidRequest as error:
            yield f"{key}: {error}"


def _limits(settings: NodeSettings) -> Iterator[str]:
    table = settings.supervisor
    if table.restart_pause_ms_max < table.restart_pause_ms:
        yield "supervisor.restart_pause_ms_max: it is less than restart_pause_ms"
    if 0 < table.silence_ms_max < table.silence_ms:
        yield "supervisor.silence_ms_max: it is less than silence_ms"
    if settings.memory.bytes_max and not settings.clustered:
        yield "memory.bytes_max: it divides the memory of a cluster's node, and this is a folder"
    try:
        _ = settings.bounds
    except InvalidRequest as error:
        yield f"memory.bytes_max: {error}"


def _values(settings: NodeSettings, kind: str) -> Iterator[tuple[str, str]]:
    """All paths of a kind that are said."""
    for name, key in KEYS.items():
        if key.kind != kind:
            continue
        table, _, last = name.rpartition(".")
        value = getattr(getattr(settings, table) if table else settings, last)
        for each in (value,) if isinstance(value, str) else value:
            if each:
                yield name, each
