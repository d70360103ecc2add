"""The one rule by which a store is found: argument, environment, configuration, or a clear error.

1. what the caller names;
2. else `HERDBOOK_URL`;
3. else `url` in the user's configuration file, `~/.config/herdbook/config.toml` (below
   `XDG_CONFIG_HOME` where that is set, or the file that `HERDBOOK_CONFIG` names);
4. else an error that names all three.

Each may be a folder or the url of a cluster, `herdbook://host:port,host:port/path`. The settings
for a cluster are always those of the configuration file, whichever of the three named it:

    url = "herdbook://zookeeper-1:2181,zookeeper-2:2181/prod"
    wire = "framed"                        # or "grpc"
    survives = "host"                      # the loss that acknowledged data survives
    [security]
    secret_file = "/etc/herdbook/secret"   # a line of at least 16 bytes, or two: both are accepted
    certificate = "client.pem"             # paths are relative to the configuration file
    private_key = "client.key"
    authorities = "authorities.pem"
    [login]                                # who comes as a user rather than as a part of it
    user = "ann"
    password_file = "password"             # or token_file
    [zookeeper]
    user = "herdbook"
    password_file = "zookeeper-password"
    authorities = "zookeeper-authorities.pem"   # TLS; also certificate and private_key, if required

`HERDBOOK_USER` with `HERDBOOK_PASSWORD_FILE`, or `HERDBOOK_TOKEN`, count more than `[login]`.

Invariants:
- Nothing is made by looking: a folder that is not there, or holds no store, is an error.
- A key of the file that nobody knows is an error: a misspelt one must not be passed over.
"""

import os
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from engine.access.secret_files import secret_text_in, shared_secrets_in
from engine.errors import InvalidRequest
from engine.metadata.cluster_url import SCHEME, parse_url

if TYPE_CHECKING:
    from engine.ledger.client import LedgerClient
    from engine.ledger.settings import ClientSettings
    from engine.metadata.zookeeper_settings import ZooKeeperSettings
    from engine.transport.security import Security

URL_VARIABLE: Final = "HERDBOOK_URL"
FILE_VARIABLE: Final = "HERDBOOK_CONFIG"
USER_VARIABLE: Final = "HERDBOOK_USER"
PASSWORD_FILE_VARIABLE: Final = "HERDBOOK_PASSWORD_FILE"
TOKEN_VARIABLE: Final = "HERDBOOK_TOKEN"


class StoreNotFound(InvalidRequest):
    """No store is named, or the one named is not there. Nothing was opened or made."""


class SecurityTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the table `[security]` may say: names of files."""

    secret_file: str = ""
    certificate: str = ""
    private_key: str = ""
    authorities: str = ""


class AuditTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the table `[audit]` may say, at servers: the folder of its files; "": the log."""

    folder: str = ""


class LoginTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the table `[login]` may say: a user with the file of a password, or that of a token."""

    user: str = ""
    password_file: str = ""
    token_file: str = ""


class Login(NamedTuple):
    """Who comes: a user with a password, or whoever holds a token; nothing: a part of a cluster."""

    user: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"


class ZooKeeperTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[zookeeper]`: the user of a digest, and TLS if there are authorities."""

    user: str = ""
    password_file: str = ""
    authorities: str = ""
    certificate: str = ""
    private_key: str = ""


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the user's configuration file says; `folder` is where it lies."""

    url: str = ""
    wire: Literal["framed", "grpc"] = "framed"
    survives: Literal["", "bookie", "host", "rack", "zone"] = ""
    """The loss that acknowledged data survives: `bookie`, `host`, `rack` or `zone`. By default
    `host` in a cluster of more than two hosts, otherwise `bookie`.
    """
    security: SecurityTable = SecurityTable()
    login: LoginTable = LoginTable()
    audit: AuditTable = AuditTable()
    zookeeper: ZooKeeperTable = ZooKeeperTable()
    folder: str = ""

    def path(self, name: str) -> Path | None:
        """A file that the configuration names, None if it names none."""
        return Path(self.folder, name).expanduser() if name else None

    def make_settings(self) -> "ClientSettings":
        """The settings by which new ledgers are written."""
        from engine.ledger.settings import ClientSettings

        return ClientSettings(survives=self.survives)

    def make_security(self, login: Login | None = None) -> "Security":
        """Secret, certificates, and the login: as given, else of the environment, else of the file.

        Their files can be read again. Raises `InvalidRequest` for files that cannot be read.
        """
        from engine.transport.security import Security

        return Security.renewed(partial(self._read_security, login))

    def _read_security(self, login: Login | None) -> "Security":
        from engine.transport.security import Security

        secret, other = shared_secrets_in(self.path(self.security.secret_file))
        table, who = self.security, login or self._login(os.environ)
        return Security(
            user=who.user,
            password=who.password,
            token=who.token,
            secret=secret,
            other_secret=other,
            certificate=self.path(table.certificate),
            private_key=self.path(table.private_key),
            authorities=self.path(table.authorities),
        )

    def _login(self, environment: Mapping[str, str]) -> Login:
        token, user = environment.get(TOKEN_VARIABLE, ""), environment.get(USER_VARIABLE, "")
        if token and user:
            raise InvalidRequest(f"say {USER_VARIABLE} or {TOKEN_VARIABLE}, not both")
        if token:
            return Login(token=token.strip())
        user, file = login_of(self, environment)
        if user:
            if file is None:
                raise InvalidRequest(
                    f"user {user} has no password here: set {PASSWORD_FILE_VARIABLE}, or "
                    "password_file in [login]"
                )
            return Login(user, secret_text_in(file))
        named = self.path(self.login.token_file)
        if named is not None:
            return Login(token=secret_text_in(named))
        return Login()

    def make_zookeeper(self) -> "ZooKeeperSettings":
        """Credentials of ZooKeeper. Raises `InvalidRequest` for files that cannot be read."""
        from engine.metadata.zookeeper_settings import ZooKeeperSettings

        table = self.zookeeper
        password = secret_text_in(self.path(table.password_file))
        files = map(self.path, (table.certificate, table.private_key, table.authorities))
        return ZooKeeperSettings(user=table.user, password=password, tls=tls_of(*files))


def tls_of(
    certificate: Path | None, private_key: Path | None, authorities: Path | None
) -> "Security":
    """TLS to ZooKeeper. Raises `InvalidRequest` for files that do not match each other."""
    from engine.transport.security import Security

    return Security.renewed(lambda: Security(b"", certificate, private_key, authorities))


def login_of(
    configuration: Configuration, environment: Mapping[str, str]
) -> tuple[str, Path | None]:
    """The user that is named, and the file of the password, without a look into it."""
    file = environment.get(PASSWORD_FILE_VARIABLE)
    user = environment.get(USER_VARIABLE) or configuration.login.user
    return user, Path(file) if file else configuration.path(configuration.login.password_file)


def configuration_file(environment: Mapping[str, str]) -> Path:
    """Where the user's configuration is, or would be."""
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home, "herdbook", "config.toml")


def read_configuration(file: Path, *, needed: bool = False) -> Configuration:
    """What a file says; one that is not there says nothing.

    Raises `InvalidRequest` for one that cannot be read, or says what nobody knows, and for one
    that is not there though `needed`.
    """
    try:
        told: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if needed:
            raise InvalidRequest(f"{file} is not there, and {FILE_VARIABLE} names it") from error
        return Configuration()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file} cannot be read as a configuration: {error}") from error
    try:
        return msgspec.convert({**told, "folder": str(file.parent)}, Configuration)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{file}: {error}") from error


def find(
    argument: str | None,
    environment: Mapping[str, str] | None = None,
    configuration: Configuration | None = None,
    *,
    create: bool = False,
) -> str:
    """The store that the rule finds: a folder's path or a cluster's url.

    With `create` a folder that is not there is made, whoever named it. Raises `StoreNotFound`,
    `InvalidRequest` for a configuration that cannot be read.
    """
    environment = os.environ if environment is None else environment
    file = configuration_file(environment)
    named = argument or environment.get(URL_VARIABLE)
    if not named:
        needed = bool(environment.get(FILE_VARIABLE))
        configuration = configuration or read_configuration(file, needed=needed)
        named = configuration.url
        if named and not is_cluster(named):
            named = str(configuration.path(named))
    if not named:
        raise StoreNotFound(
            "no store is named: give a folder or herdbook://host:port/path (--url in a shell), "
            f'set {URL_VARIABLE}, or write url = "..." into {file}'
        )
    if is_cluster(named):
        _check_url(named)
        return named
    if "://" in named:
        raise StoreNotFound(f"{named} is neither a folder nor a url that begins with {SCHEME}")
    if create:
        _make(Path(named))
    with _permitted(named):
        there, is_folder = Path(named).exists(), Path(named).is_dir()
    if there and not is_folder:
        raise StoreNotFound(f"{named} is a file: name a folder")
    if not there:
        raise StoreNotFound(
            f"{named} is no folder: name one that is there, or make it by a command that "
            "takes --create"
        )
    return named


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        # What stands there is told by whoever looks next.
        return
    except OSError as error:
        raise StoreNotFound(
            f"{folder} cannot be made: {error.strerror}: name a folder where you may write"
        ) from error


@contextmanager
def _permitted(folder: object) -> Iterator[None]:
    """Around a look into a folder that may be closed to this user."""
    try:
        yield
    except PermissionError as error:
        raise StoreNotFound(
            f"{folder} cannot be read: {error.strerror}: it is another user's"
        ) from error


def _check_url(url: str) -> None:
    try:
        parse_url(url)
    except InvalidRequest as error:
        raise StoreNotFound(f"{error}: say herdbook://host:port,host:port/path") from error


def is_cluster(url: str) -> bool:
    """Whether a store is a cluster rather than a folder."""
    return url.startswith(SCHEME)


@asynccontextmanager
async def open_store(argument: str | None = None) -> "AsyncIterator[LedgerClient]":
    """Open the store that the rule finds, as long as the block lasts.

    Raises `StoreNotFound` and what `engine.open` or `engine.connect` raise.
    """
    needed = bool(os.environ.get(FILE_VARIABLE))
    configuration = read_configuration(configuration_file(os.environ), needed=needed)
    url = find(argument, os.environ, configuration)
    # Who only asks for help needs nothing of a store.
    if is_cluster(url):
        from engine.connecting import connect

        async with connect(
            url,
            settings=configuration.make_settings(),
            security=configuration.make_security(),
            wire=configuration.wire,
            zookeeper=configuration.make_zookeeper(),
        ) as connection:
            yield connection
        return
    check_store(Path(url))
    # A client of a cluster needs neither RocksDB nor a folder's lock.
    from engine import cluster

    async with cluster.open(url) as engine:
        yield engine


def check_store(folder: Path) -> None:
    """Raise `StoreNotFound` for a folder that `herdbook.open` has not made: a look makes none."""
    with _permitted(folder):
        _check_store(folder)


def _check_store(folder: Path) -> None:
    from engine.folder.lock import LOCK_NAME, METADATA_NAME

    if (folder / METADATA_NAME).is_dir():
        return
    if (folder / "identity").is_file():
        raise StoreNotFound(
            f"{folder} is one bookie's folder: name its cluster, or look inside with "
            "python -m engine.bookie inspect"
        )
    if not (folder / LOCK_NAME).is_file() or not list(folder.glob("bookie-*")):
        raise StoreNotFound(
            f"{folder} holds no store: name one that does, or make it by a command that takes "
            "--create"
        )
