"""What the dialect finds of tables is what made them; urls; names; what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc, types
from sqlalchemy.dialects import registry

from herd import alchemy

registry.register("herdbook", "herd.alchemy", "HerdDialect")

DEFINED = sa.MetaData()
sa.Table(
    "farm",
    DEFINED,
    sa.Column("country", sa.String(2), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.UniqueConstraint("name", "country", name="farm_name"),
)
sa.Table(
    "Cow",
    DEFINED,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("country", sa.String(2)),
    sa.Column("number", sa.Integer),
    sa.Column("milk", sa.Numeric(12, 4), server_default=sa.text("1.5")),
    sa.Column("seen", sa.DateTime, server_default=sa.func.now(), nullable=False),
    sa.Column("told", sa.DateTime(timezone=True)),
    sa.Column("kind", sa.Enum("milk", "beef", name="kind")),
    sa.Column("small", sa.SmallInteger),
    sa.Column("tiny", alchemy.TINYINT),
    sa.Column("real", sa.REAL),
    sa.Column("double", sa.Double),
    sa.Column("tag", sa.Uuid),
    sa.Column("facts", sa.JSON),
    sa.Column("photo", sa.LargeBinary),
    sa.Column("vector", sa.ARRAY(sa.REAL)),
    sa.Column("born", sa.Date),
    sa.Column("fed", sa.Time),
    sa.Column("order", sa.Boolean),
    sa.ForeignKeyConstraint(
        ["country", "number"], ["farm.country", "farm.number"], name="home", ondelete="SET NULL"
    ),
    sa.CheckConstraint("milk > 0 AND small < 100", name="sane"),
    sa.Index("by_milk", "milk", "small"),
    sa.Index("by_tag", "tag", unique=True),
)
VIEW = 'CREATE VIEW rich (id, twice) AS SELECT id, milk * 2 FROM "Cow" WHERE milk > 10'


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"herdbook:///{tmp_path_factory.mktemp('reflection')}")
    DEFINED.create_all(made)
    with made.begin() as connection:
        connection.exec_driver_sql(VIEW)
    yield made
    made.dispose()


def facts(inspector: Any, table: str) -> dict[str, Any]:
    """All that an inspector tells of a table."""
    return {
        "columns": [
            {**column, "type": column["type"].compile(dialect=alchemy.HerdDialect())}
            for column in inspector.get_columns(table)
        ],
        "key": inspector.get_pk_constraint(table),
        "foreign": inspector.get_foreign_keys(table),
        "indexes": inspector.get_indexes(table),
        "unique": inspector.get_unique_constraints(table),
        "checks": inspector.get_check_constraints(table),
    }


def test_an_inspector_finds_tables_columns_and_keys(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    assert inspector.get_table_names() == ["Cow", "farm"]
    assert inspector.get_view_names() == ["rich"]
    assert inspector.has_table("cow") and inspector.has_table("RICH")
    assert not inspector.has_table("horse")
    cow = facts(inspector, "Cow")
    assert {column["name"]: column["type"] for column in cow["columns"]} == {
        "id": "BIGINT",
        "country": "VARCHAR(2)",
        "number": "INTEGER",
        "milk": "DECIMAL(12, 4)",
        "seen": "TIMESTAMP",
        "told": "TIMESTAMPTZ",
        "kind": "VARCHAR(4)",
        "small": "SMALLINT",
        "tiny": "TINYINT",
        "real": "REAL",
        "double": "DOUBLE",
        "tag": "UUID",
        "facts": "JSON",
        "photo": "BLOB",
        "vector": "FLOAT[]",
        "born": "DATE",
        "fed": "TIME",
        "order": "BOOLEAN",
    }
    by_name = {column["name"]: column for column in cow["columns"]}
    assert by_name["id"]["autoincrement"] and not by_name["number"]["autoincrement"]
    assert by_name["milk"]["default"] == "1.5" and by_name["id"]["default"] is None
    assert not by_name["seen"]["nullable"] and by_name["told"]["nullable"]
    assert cow["key"]["constrained_columns"] == ["id"]
    assert inspector.get_pk_constraint("farm")["constrained_columns"] == ["country", "number"]
    [home] = cow["foreign"]
    assert home["name"] == "home" and home["options"] == {"ondelete": "SET NULL"}
    assert home["constrained_columns"] == ["country", "number"]
    assert (home["referred_table"], home["referred_columns"]) == ("farm", ["country", "number"])
    indexes = {index["name"]: index for index in cow["indexes"]}
    assert indexes["by_milk"]["column_names"] == ["milk", "small"]
    assert indexes["by_tag"]["unique"] and not indexes["by_milk"]["unique"]
    [unique] = inspector.get_unique_constraints("farm")
    assert (unique["name"], unique["column_names"]) == ("farm_name", ["name", "country"])
    [check] = cow["checks"]
    assert check["name"] == "sane" and "milk > 0" in check["sqltext"]


def test_a_view_has_columns_and_a_definition(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    names = [column["name"] for column in inspector.get_columns("rich")]
    assert names == ["id", "twice"]
    assert isinstance(inspector.get_columns("rich")[1]["type"], types.DECIMAL)
    assert "milk * 2" in inspector.get_view_definition("rich")
    assert inspector.get_pk_constraint("rich")["constrained_columns"] == []
    with pytest.raises(exc.NoSuchTableError):
        inspector.get_columns("horse")


def test_tables_made_of_what_was_found_are_found_the_same(
    engine: sa.Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = sa.MetaData()
    found.reflect(engine)
    copy = sa.create_engine(f"herdbook:///{tmp_path_factory.mktemp('copied')}")
    try:
        found.create_all(copy)
        for table in ("farm", "Cow"):
            assert facts(sa.inspect(copy), table) == facts(sa.inspect(engine), table)
        with copy.begin() as connection:
            cow = found.tables["Cow"]
            added = connection.execute(sa.insert(cow).values(small=3))
            assert added.inserted_primary_key == (1,)
        found.drop_all(copy)
        assert sa.inspect(copy).get_table_names() == []
    finally:
        copy.dispose()


def test_any_word_may_be_a_name(engine: sa.Engine) -> None:
    words = sorted(alchemy.HerdDialect.preparer.reserved_words)
    metadata = sa.MetaData()
    columns: list[Any] = [sa.Column(word, sa.Integer) for word in words]
    table = sa.Table("select", metadata, sa.Column("key", sa.Integer, primary_key=True), *columns)
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(table), [dict.fromkeys(words, 1) | {"key": 1}])
        row = connection.execute(sa.select(table)).one()
        assert sum(row) == len(words) + 1
    metadata.drop_all(engine)


@pytest.mark.parametrize(
    ("url", "where", "options"),
    [
        ("herdbook:///data", "data", {"tablespace": "default"}),
        ("herdbook:////var/data?tablespace=sales&bookies=3", "/var/data",
         {"tablespace": "sales", "bookies": 3}),
        ("herdbook://zk1:2181/prod", "herdbook://zk1:2181/prod", {"tablespace": "default"}),
        ("herdbook:///prod?host=a:1&host=b:2", "herdbook://a:1,b:2/prod",
         {"tablespace": "default"}),
    ],
)  # fmt: skip
def test_a_url_says_where_to_connect(url: str, where: str, options: dict[str, Any]) -> None:
    dialect = alchemy.HerdDialect()
    assert dialect.create_connect_args(sa.make_url(url)) == ([where], options)


def test_a_url_that_says_nothing_or_too_much_is_refused() -> None:
    dialect = alchemy.HerdDialect()
    for url in ("herdbook://", "herdbook:///data?moo=1"):
        with pytest.raises(exc.ArgumentError):
            dialect.create_connect_args(sa.make_url(url))


def test_what_cannot_be_kept_is_refused_when_it_is_compiled() -> None:
    dialect = alchemy.HerdDialect()
    for column in (
        sa.Column("a", sa.ARRAY(sa.Integer)),
        sa.Column("a", sa.Time(timezone=True)),
        sa.Column("a", sa.Integer, sa.Computed("b + 1")),
        sa.Column("a", sa.Integer, sa.Identity(start=5), primary_key=True),
    ):
        table = sa.Table("t", sa.MetaData(), column)
        with pytest.raises(exc.CompileError):
            sa.schema.CreateTable(table).compile(dialect=dialect)
