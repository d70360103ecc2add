"""The dialect under an ORM: a model of three tables, transactions, what the database made."""

import datetime
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc, orm
from sqlalchemy.dialects import registry

from herd import alchemy

registry.register("herdbook", "herd.alchemy", "HerdDialect")


class Model(orm.DeclarativeBase):
    """What is mapped."""


class Farm(Model):
    __tablename__ = "farm"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(20), unique=True)
    cows: orm.Mapped[list["Cow"]] = orm.relationship(
        back_populates="farm", cascade="all, delete-orphan"
    )


class Cow(Model):
    __tablename__ = "cow"
    __table_args__ = (sa.CheckConstraint("milk >= 0", name="cow_milk"),)
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    farm_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("farm.id", ondelete="CASCADE"))
    name: orm.Mapped[str] = orm.mapped_column(sa.Text, index=True)
    milk: orm.Mapped[Decimal] = orm.mapped_column(sa.Numeric(8, 2), server_default="0")
    tag: orm.Mapped[uuid.UUID | None]
    facts: orm.Mapped[Any] = orm.mapped_column(sa.JSON, default=dict)
    photo: orm.Mapped[bytes | None]
    vector: orm.Mapped[list[float] | None] = orm.mapped_column(sa.ARRAY(sa.Float))
    born: orm.Mapped[datetime.date | None]
    seen: orm.Mapped[datetime.datetime | None] = orm.mapped_column(sa.DateTime(timezone=True))
    fed: orm.Mapped[datetime.time | None]
    sick: orm.Mapped[bool] = orm.mapped_column(default=False)
    farm: orm.Mapped[Farm] = orm.relationship(back_populates="cows")
    milkings: orm.Mapped[list["Milking"]] = orm.relationship(order_by="Milking.day")


class Milking(Model):
    __tablename__ = "milking"
    cow_id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("cow.id"), primary_key=True)
    day: orm.Mapped[datetime.date] = orm.mapped_column(primary_key=True)
    litres: orm.Mapped[float]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"herdbook:///{tmp_path_factory.mktemp('orm')}")
    yield made
    made.dispose()


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[orm.Session]:
    Model.metadata.create_all(engine)
    with orm.Session(engine) as opened:
        yield opened
    Model.metadata.drop_all(engine)


def test_objects_come_back_as_they_were(session: orm.Session) -> None:
    tag = uuid.UUID(int=7)
    moment = datetime.datetime(2026, 2, 3, 4, 5, 6, 7, tzinfo=datetime.UTC)
    farm = Farm(name="Alm")
    farm.cows = [
        Cow(
            name="Elsa",
            milk=Decimal("21.50"),
            tag=tag,
            facts={"horns": 2, "names": ["E", "Els"]},
            photo=b"\x00\xff",
            vector=[1.0, 0.5],
            born=datetime.date(2020, 2, 29),
            seen=moment,
            fed=datetime.time(5, 30),
            sick=True,
        ),
        Cow(name="Resi"),
    ]
    farm.cows[0].milkings = [
        Milking(day=datetime.date(2026, 1, day), litres=day / 2) for day in (2, 1, 3)
    ]
    session.add(farm)
    session.commit()
    session.expire_all()
    [elsa, resi] = session.scalars(sa.select(Cow).order_by(Cow.name))
    assert (elsa.farm.name, elsa.milk, elsa.tag, elsa.photo) == (
        "Alm",
        Decimal("21.50"),
        tag,
        b"\x00\xff",
    )
    assert (elsa.facts, elsa.vector) == ({"horns": 2, "names": ["E", "Els"]}, [1.0, 0.5])
    assert (elsa.born, elsa.seen, elsa.fed, elsa.sick) == (
        datetime.date(2020, 2, 29),
        moment,
        datetime.time(5, 30),
        True,
    )
    assert [milking.litres for milking in elsa.milkings] == [0.5, 1.0, 1.5]
    assert (resi.milk, resi.tag, resi.sick, resi.facts) == (Decimal("0.00"), None, False, {})


def test_queries_join_group_page_and_load_what_belongs_together(session: orm.Session) -> None:
    for number in range(3):
        cows = [Cow(name=f"cow {number} {place}", milk=place) for place in range(number + 1)]
        session.add(Farm(name=f"farm {number}", cows=cows))
    session.commit()
    counted = (
        sa.select(Farm.name, sa.func.count(Cow.id), sa.func.sum(Cow.milk))
        .join(Farm.cows)
        .group_by(Farm.name)
        .having(sa.func.count() > 1)
        .order_by(Farm.name.desc())
    )
    assert [tuple(row) for row in session.execute(counted)] == [
        ("farm 2", 3, Decimal("3.00")),
        ("farm 1", 2, Decimal("1.00")),
    ]
    names = sa.select(Cow.name).order_by(Cow.name)
    assert session.scalars(names.limit(2)).all() == ["cow 0 0", "cow 1 0"]
    assert session.scalars(names.offset(4)).all() == ["cow 2 1", "cow 2 2"]
    assert session.scalars(names.limit(1).offset(1)).all() == ["cow 1 0"]
    assert session.scalars(names.where(Cow.name.in_([]))).all() == []
    assert session.scalars(names.where(Cow.name.in_(["cow 0 0", "x"]))).all() == ["cow 0 0"]
    assert session.scalars(names.where(Cow.name.ilike("COW 2%"), Cow.milk > 1)).all() == ["cow 2 2"]
    assert session.scalars(names.where(Cow.name.contains("2 1"))).all() == ["cow 2 1"]
    assert session.scalars(names.where(Cow.name.regexp_match("^cow . 2$"))).all() == ["cow 2 2"]
    farms = session.scalars(
        sa.select(Farm).options(orm.selectinload(Farm.cows)).order_by(Farm.id)
    ).all()
    assert [len(farm.cows) for farm in farms] == [1, 2, 3]
    joined = session.scalars(sa.select(Farm).options(orm.joinedload(Farm.cows))).unique().all()
    assert len(joined) == 3
    ranked = sa.select(Cow.name, sa.func.rank().over(order_by=Cow.milk.desc())).limit(1)
    assert tuple(session.execute(ranked.order_by(sa.text("2"))).one()) == ("cow 2 2", 1)
    best = sa.select(sa.func.max(Cow.milk)).scalar_subquery()
    assert session.scalars(names.where(Cow.milk == best)).all() == ["cow 2 2"]
    either = sa.union(sa.select(Farm.name), sa.select(Cow.name)).subquery()
    assert session.scalar(sa.select(sa.func.count()).select_from(either)) == 9


def test_many_objects_are_inserted_at_once_and_know_their_keys(session: orm.Session) -> None:
    farm = Farm(name="Alm")
    session.add(farm)
    session.flush()
    cows = [Cow(name=f"cow {number}", farm_id=farm.id, milk=number % 7) for number in range(1_500)]
    session.add_all(cows)
    session.commit()
    ids = [cow.id for cow in cows]
    assert ids == sorted(ids) and len(set(ids)) == 1_500
    by_name = {row.name: row.id for row in session.execute(sa.select(Cow.name, Cow.id))}
    assert all(by_name[cow.name] == cow.id for cow in cows)


def test_returning_tells_what_was_changed(session: orm.Session) -> None:
    farm = Farm(name="Alm", cows=[Cow(name="a", milk=1), Cow(name="b", milk=2)])
    session.add(farm)
    session.flush()
    added = sa.insert(Cow).values(name="c", farm_id=farm.id, facts={}).returning(Cow.id, Cow.milk)
    assert session.execute(added).one()[1] == Decimal("0.00")
    raised = sa.update(Cow).where(Cow.milk > 0).values(milk=Cow.milk + 1).returning(Cow.name)
    assert sorted(session.scalars(raised)) == ["a", "b"]
    gone = sa.delete(Cow).where(Cow.name == "a").returning(Cow.milk)
    assert session.scalars(gone).all() == [Decimal("2.00")]
    result: Any = session.execute(sa.update(Cow).values(sick=True))
    assert result.rowcount == 2


def test_an_insert_does_what_it_is_told_about_rows_that_are_there(session: orm.Session) -> None:
    session.add(Farm(id=1, name="Alm"))
    session.flush()
    insert = alchemy.insert(Farm).values(id=1, name="Tal")
    session.execute(insert.on_conflict_do_nothing(index_elements=["id"]))
    session.execute(insert.on_conflict_do_nothing())
    assert session.scalars(sa.select(Farm.name)).all() == ["Alm"]
    replace = insert.on_conflict_do_update(
        index_elements=[Farm.id],
        set_={"name": insert.excluded.name + "!"},
        where=Farm.name == "Alm",
    )
    session.execute(replace)
    session.execute(replace)
    assert session.scalars(sa.select(Farm.name)).all() == ["Tal!"]


def test_a_flush_that_fails_is_an_integrity_error_and_rolls_back(session: orm.Session) -> None:
    session.add(Farm(name="Alm"))
    session.commit()
    for wrong in (
        Farm(name="Alm"),
        Farm(name=None),
        Cow(name="x", farm_id=77),
        Cow(name="x", farm=Farm(name="Tal"), milk=-1),
    ):
        session.add(wrong)
        with pytest.raises(exc.IntegrityError) as caught:
            session.commit()
        assert str(getattr(caught.value.orig, "code", "")).startswith("23")
        session.rollback()
    with pytest.raises(exc.DataError):
        session.execute(sa.insert(Farm).values(name="x" * 21))
    with pytest.raises(exc.ProgrammingError):
        session.execute(sa.text("SELECT * FROM horse"))
    with pytest.raises(exc.NotSupportedError):
        session.execute(sa.text("CREATE TABLE t (a MOO)"))
    session.rollback()
    assert session.scalars(sa.select(Farm.name)).all() == ["Alm"]


def test_a_savepoint_takes_back_its_part(session: orm.Session) -> None:
    session.add(Farm(name="Alm"))
    with pytest.raises(exc.IntegrityError), session.begin_nested():
        session.add(Farm(name="Tal"))
        session.flush()
        session.add(Farm(name="Alm"))
        session.flush()
    with session.begin_nested():
        session.add(Farm(name="Berg"))
    session.commit()
    assert sorted(session.scalars(sa.select(Farm.name))) == ["Alm", "Berg"]


def test_deleting_a_farm_takes_its_cows_along(session: orm.Session) -> None:
    farm = Farm(name="Alm", cows=[Cow(name="a"), Cow(name="b")])
    session.add(farm)
    session.commit()
    session.delete(farm)
    session.commit()
    assert session.scalar(sa.select(sa.func.count()).select_from(Cow)) == 0


def test_parts_of_json_are_asked_for_by_name_and_place(session: orm.Session) -> None:
    farm = Farm(name="Alm")
    farm.cows = [Cow(name="a", facts={"horns": 2, "kin": ["b", 'c"d']}), Cow(name="b", facts={})]
    session.add(farm)
    session.flush()
    assert session.scalar(sa.select(Cow.name).where(Cow.facts["horns"].as_integer() == 2)) == "a"
    kin = sa.select(Cow.facts[("kin", 1)].as_string()).where(Cow.name == "a")
    assert session.scalar(kin) == 'c"d'
    assert session.scalar(sa.select(Cow.facts["kin"]).where(Cow.name == "a")) == ["b", 'c"d']


def test_levels_of_isolation_are_the_connections(engine: sa.Engine, session: orm.Session) -> None:
    session.add(Farm(name="Alm"))
    session.commit()
    count = sa.select(sa.func.count()).select_from(Farm)
    with engine.connect().execution_options(isolation_level="SNAPSHOT") as early:
        assert str(early.get_isolation_level()) == "SNAPSHOT"
        assert early.scalar(count) == 1
        session.add(Farm(name="Tal"))
        session.commit()
        assert early.scalar(count) == 1
    with engine.connect() as plain:
        assert plain.get_isolation_level() == "READ COMMITTED"
        assert plain.scalar(count) == 2
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as alone:
        assert alone.get_isolation_level() == "AUTOCOMMIT"
        alone.execute(sa.insert(Farm).values(name="Berg"))
    with engine.connect() as plain:
        assert plain.scalar(count) == 3


def test_a_row_is_locked_for_who_will_change_it(session: orm.Session) -> None:
    session.add(Farm(name="Alm"))
    session.commit()
    farm = session.scalars(sa.select(Farm).where(Farm.name == "Alm").with_for_update()).one()
    farm.name = "Tal"
    session.commit()
    with pytest.raises(exc.CompileError):
        session.execute(sa.select(Farm).with_for_update(skip_locked=True))


def test_a_connection_that_was_closed_is_replaced(tmp_path: Path) -> None:
    engine = sa.create_engine(f"herdbook:///{tmp_path}", pool_pre_ping=True)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
        raw: Any = connection.connection.dbapi_connection
    raw.close()
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1
    engine.dispose()
