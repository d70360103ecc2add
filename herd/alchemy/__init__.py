"""The SQLAlchemy dialect: `create_engine("herdbook:///./data")`, Core and ORM.

    herdbook:///data                        a folder beside the program, made if it is not there
    herdbook:////var/lib/data?tablespace=sales
    herdbook://zk1:2181/prod                a cluster
    herdbook:///prod?host=zk1:2181&host=zk2:2181

`insert` is SQLAlchemy's with `on_conflict_do_update` and `on_conflict_do_nothing`.
"""

from herd.alchemy.dialect import HerdDialect
from herd.alchemy.inserting import Insert, insert
from herd.alchemy.types import TINYINT

__all__ = ["TINYINT", "HerdDialect", "Insert", "insert"]
