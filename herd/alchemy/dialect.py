"""The dialect itself: what the database can do, how SQLAlchemy connects and ends.

Invariants:
- A connection that goes back to the pool has no transaction, and the isolation that it came with.
- Importing this imports SQLAlchemy; nothing else in the package does.
"""

from typing import Any, Final

from sqlalchemy import exc, pool, types
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts

from herd.alchemy.compiling import HerdCompiler, HerdDdlCompiler, HerdIdentifierPreparer
from herd.alchemy.reflecting import Reflection
from herd.alchemy.types import HerdTypeCompiler, JsonIndex, JsonPath

LEVELS: Final = ("READ COMMITTED", "SNAPSHOT")
_SCHEME: Final = "herdbook://"


class HerdDialect(Reflection):
    """`herdbook://` for `sqlalchemy.create_engine`."""

    name = "herdbook"
    driver = "herd"
    default_paramstyle = "qmark"

    statement_compiler = HerdCompiler
    ddl_compiler = HerdDdlCompiler
    type_compiler_cls = HerdTypeCompiler
    preparer = HerdIdentifierPreparer
    colspecs = {types.JSON.JSONIndexType: JsonIndex, types.JSON.JSONPathType: JsonPath}

    supports_statement_cache = True
    supports_alter = True
    supports_schemas = False
    supports_sequences = False
    supports_identity_columns = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    returns_native_bytes = True
    supports_default_values = True
    supports_default_metavalue = True
    supports_empty_insert = False
    supports_multivalues_insert = True
    supports_sane_rowcount = True
    supports_sane_multi_rowcount = True
    insert_returning = True
    update_returning = True
    delete_returning = True
    insert_null_pk_still_autoincrements = True
    use_insertmanyvalues = True
    # AUTO_INCREMENT counts in the order of VALUES.
    insertmanyvalues_implicit_sentinel = (
        InsertmanyvaluesSentinelOpts.AUTOINCREMENT | InsertmanyvaluesSentinelOpts.IDENTITY
    )
    # A statement of each size is parsed once: a rest of many rows would cost more than it saves.
    insertmanyvalues_page_size = 250
    cte_follows_insert = True
    div_is_floordiv = False
    tuple_in_values = False
    max_identifier_length = 255

    @classmethod
    def import_dbapi(cls) -> Any:
        """The module of PEP 249."""
        from herd import dbapi

        return dbapi

    @classmethod
    def get_pool_class(cls, url: Any) -> type[pool.Pool]:
        """Connections are kept: the last one that closes a folder makes the next one open it."""
        return pool.QueuePool

    def create_connect_args(self, url: Any) -> Any:
        """Where a url leads, for `herd.connect`. Raises `ArgumentError` for one that names nothing.

        The query may say `tablespace`, `bookies` (of a new folder) and, for a cluster, `host`.
        """
        query = dict(url.query)
        hosts = query.pop("host", ())
        hosts = [hosts] if isinstance(hosts, str) else list(hosts)
        if url.host:
            hosts.insert(0, url.host if url.port is None else f"{url.host}:{url.port}")
        options: dict[str, Any] = {"tablespace": query.pop("tablespace", "default")}
        if "bookies" in query:
            options["bookies"] = int(query.pop("bookies"))
        if query:
            raise exc.ArgumentError(f"a url of herdbook knows no {', '.join(sorted(query))}")
        if hosts:
            where = f"{_SCHEME}{','.join(hosts)}/{url.database or ''}"
        elif url.database:
            where = url.database
        else:
            raise exc.ArgumentError("name a folder: herdbook:///folder, herdbook:////from/the/root")
        return [where], options

    # Transactions

    def get_isolation_level_values(self, dbapi_connection: Any) -> Any:
        """What `isolation_level` may be."""
        return [*LEVELS, "AUTOCOMMIT"]

    def get_default_isolation_level(self, dbapi_connection: Any) -> Any:
        """What a connection begins with."""
        return "READ COMMITTED"

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """What a connection has now."""
        return "AUTOCOMMIT" if dbapi_connection.autocommit else dbapi_connection.isolation_level

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        """Change it, between transactions."""
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        if level != "AUTOCOMMIT":
            dbapi_connection.isolation_level = level

    def detect_autocommit_setting(self, dbapi_connection: Any) -> bool:
        """Whether each statement is a transaction."""
        return bool(dbapi_connection.autocommit)

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Ask for a row, and leave no transaction behind."""
        super().do_ping(dbapi_connection)
        dbapi_connection.rollback()
        return True

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Whether an error means that the connection is of no use any more."""
        if connection is None:
            return False
        raw = getattr(connection, "dbapi_connection", None) or connection
        return bool(raw.closed)
