"""Statements that are too large, out of range, or of odd types, and what each must answer.

The expected answer is the list of rows as Python prints it, or an SQLSTATE. All statements run on
the table of `TABLES`, with the limits `RESULT_BYTES` for a result and `QUERY_BYTES` for a query.
"""

from dataclasses import dataclass
from typing import Final

from engine import limits

RESULT_BYTES: Final = limits.MIB
QUERY_BYTES: Final = 64 * limits.MIB
TABLES: Final = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR, b BLOB)",
    "INSERT INTO t VALUES (1, 'a', encode('x')), (2, 'b', NULL)",
    # Bytes that are no UTF-8.
    r"UPDATE t SET b = '\xFF\xFE'::BLOB WHERE id = 1",
)


@dataclass(frozen=True)
class Attack:
    """A statement, and what it must answer: `rows`, or an error with the SQLSTATE `code`."""

    text: str
    rows: str = ""
    code: str = ""


def _refused(code: str, *texts: str) -> list[Attack]:
    return [Attack(text, code=code) for text in texts]


ANSWERED: Final = [
    Attack("SELECT -(-9223372036854775807 - 1)", "[(9223372036854775808,)]"),
    Attack("SELECT 1/0", "[(None,)]"),
    Attack("SELECT id / 0 FROM t", "[(None,), (None,)]"),
    Attack("SELECT 'NaN'::DOUBLE, 'inf'::DOUBLE, '-inf'::FLOAT", "[(nan, inf, -inf)]"),
    Attack("SELECT sqrt(-1)", "[(nan,)]"),
    Attack("SELECT ln(0)", "[(-inf,)]"),
    Attack("SELECT pow(10, 400)", "[(inf,)]"),
    Attack(
        "SELECT TIMESTAMP '2020-01-01 00:00:00' AT TIME ZONE 'Europe/Vienna'",
        "[(datetime.datetime(2019, 12, 31, 23, 0, tzinfo=datetime.timezone.utc),)]",
    ),
    Attack(
        "SELECT '2020-01-01'::TIMESTAMP_S, '2020-01-01'::TIMESTAMP_MS",
        "[(datetime.datetime(2020, 1, 1, 0, 0), datetime.datetime(2020, 1, 1, 0, 0))]",
    ),
    Attack("SELECT TIME '24:00:00'", "[(datetime.time(0, 0),)]"),
    Attack("SELECT INTERVAL 1 MONTH", "[('1 months 0 days 0 microseconds',)]"),
    Attack("SELECT INTERVAL 999999999 DAY", "[(datetime.timedelta(days=999999999),)]"),
    Attack(
        "SELECT INTERVAL '5 years 3 days 2 hours'",
        "[('60 months 3 days 7200000000 microseconds',)]",
    ),
    Attack(
        "SELECT TIMESTAMP '2020-01-01' - TIMESTAMP '290000-01-01'",
        "[(datetime.timedelta(days=-105182535),)]",
    ),
    Attack(
        "SELECT 12345678901234567890123456789012345678::DECIMAL(38,0)",
        "[(Decimal('12345678901234567890123456789012345678'),)]",
    ),
    Attack(
        "SELECT 340282366920938463463374607431768211455::UHUGEINT",
        "[(340282366920938463463374607431768211455,)]",
    ),
    Attack(
        "SELECT 170141183460469231731687303715884105727::HUGEINT",
        "[(170141183460469231731687303715884105727,)]",
    ),
    Attack(
        "SELECT (-170141183460469231731687303715884105727 - 1)::HUGEINT",
        "[(-170141183460469231731687303715884105728,)]",
    ),
    Attack("SELECT 18446744073709551615::UBIGINT", "[(18446744073709551615,)]"),
    Attack("SELECT 1e400", "[(inf,)]"),
    Attack(r"SELECT '\xFF\xFE'::BLOB", r"[(b'\xff\xfe',)]"),
    Attack(r"SELECT '\xFF\xFE'::BLOB::VARCHAR", r"[('\\xFF\\xFE',)]"),
    Attack("SELECT encode('ä')", r"[(b'\xc3\xa4',)]"),
    Attack("SELECT b::VARCHAR FROM t", r"[('\\xFF\\xFE',), (None,)]"),
    Attack("SELECT chr(0)", r"[('\x00',)]"),
    Attack("SELECT 'a' || chr(0) || 'b'", r"[('a\x00b',)]"),
    Attack("SELECT {'a': 1, 'b': [1,2,NULL]}", "[({'a': 1, 'b': [1, 2, None]},)]"),
    Attack("SELECT MAP {'a': 1, 'b': 2}", "[([('a', 1), ('b', 2)],)]"),
    Attack("SELECT MAP {[1]: {'x': 2}}", "[([([1], {'x': 2})],)]"),
    Attack("SELECT array_value(1, 2, 3)", "[([1, 2, 3],)]"),
    Attack("SELECT [1, 2, 3]::INTEGER[3]", "[([1, 2, 3],)]"),
    Attack("""SELECT '{"a": 1}'::JSON""", """[('{"a": 1}',)]"""),
    Attack(
        "SELECT '00000000-0000-0000-0000-000000000000'::UUID",
        "[(UUID('00000000-0000-0000-0000-000000000000'),)]",
    ),
    Attack(
        "SELECT {'u': '00000000-0000-0000-0000-000000000000'::UUID}",
        "[({'u': '00000000-0000-0000-0000-000000000000'},)]",
    ),
    Attack("SELECT NULL", "[(None,)]"),
    Attack("SELECT [NULL]", "[([None],)]"),
    Attack("SELECT []", "[([],)]"),
    Attack("SELECT {}", "[({},)]"),
    Attack("SELECT row(1, 2)", "[({'element1': 1, 'element2': 2},)]"),
    Attack(
        "SELECT regexp_replace(repeat('a', 30) || 'b', '(a+)+$', 'x')",
        "[('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab',)]",
    ),
    Attack("SELECT array_extract([1,2], 9223372036854775807)", "[(None,)]"),
    Attack("SELECT * FROM t LIMIT 9223372036854775807 OFFSET 9223372036854775807", "[]"),
    Attack(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 10) "
        "SELECT count(*) FROM r",
        "[(10,)]",
    ),
    Attack('SELECT "x" FROM (SELECT 1 AS "X")', "[(1,)]"),
    Attack("SELECT 1 AS a, 2 AS a", "[(1, 2)]"),
    Attack(
        "SELECT t FROM t",
        r"[({'id': 1, 'v': 'a', 'b': b'\xff\xfe'},), ({'id': 2, 'v': 'b', 'b': None},)]",
    ),
    Attack("SELECT 1 WHERE NULL", "[]"),
    Attack("SELECT [1][2]", "[(None,)]"),
    Attack("SELECT ([1,2])[1:9223372036854775807]", "[([1, 2],)]"),
    Attack(
        "SELECT date_diff('microsecond', TIMESTAMP '0001-01-01', TIMESTAMP '290000-01-01')",
        "[(9151484457600000000,)]",
    ),
]

REFUSED: Final = [
    *_refused(
        "0A000",
        "SELECT TIMESTAMP '2020-01-01 00:00:00' AT TIME ZONE 'Nowhere/None'",
        "SELECT '12:00:00+15'::TIMETZ",
        "SELECT '12:00:00+02'::TIMETZ",
        "SELECT 123456789012345678901234567890123456789012345678901234567890",
        "SELECT '101'::BIT",
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY t TO '/tmp/x'",
        "ATTACH '/tmp/x.db'",
        "PRAGMA memory_limit='1GB'",
        "SET memory_limit='1GB'",
        "INSTALL httpfs",
        "SELECT * FROM duckdb_settings()",
        "VALUES (1, 'a'), (2)",
    ),
    *_refused(
        "22000",
        "SELECT chr(55296)",
        "SELECT chr(1114112)",
        "SELECT error('mine')",
        "SELECT error('mine') FROM t",
        "SELECT CASE WHEN range = 100000 THEN error('late') ELSE range END FROM range(200000)",
        "SELECT regexp_matches(v, '(') FROM t",
        "SELECT regexp_matches('x', '[')",
        "SELECT strptime('x', '%Y')",
        """SELECT json_extract('{"a":1', '$.a')""",
        "SELECT (SELECT id FROM t)",
        "SELECT list_transform([1,2], x -> error('in'))",
        "UPDATE t SET v = error('x')",
        "DELETE FROM t WHERE error('x') = 1",
        "INSERT INTO t VALUES (4, chr(0), NULL) RETURNING error('x')",
    ),
    *_refused(
        "22003",
        "SELECT repeat('x', 5000000000)",
        "SELECT repeat('xy', 9223372036854775807)",
        "SELECT 9223372036854775807 + 1",
        "SELECT 9223372036854775807 + id FROM t",
        "SELECT CAST(id + 300 AS TINYINT) FROM t",
        "SELECT sum(x) FROM "
        "(SELECT 170141183460469231731687303715884105727::HUGEINT AS x FROM range(3))",
        "SELECT factorial(40)",
        "SELECT DATE '290000-01-01'",
        "SELECT DATE '9999-12-31' + INTERVAL 1 DAY",
        "SELECT DATE '-100-01-01'",
        "SELECT 'infinity'::DATE",
        "SELECT '-infinity'::DATE",
        "SELECT 'infinity'::TIMESTAMP",
        "SELECT TIMESTAMP '290000-01-01 00:00:00'",
        "SELECT TIMESTAMP '0001-01-01 00:00:00' - INTERVAL 1 YEAR",
        "SELECT TIMESTAMPTZ '290000-01-01 00:00:00+00'",
        "SELECT TIMESTAMPTZ '0001-01-01 00:00:00+14'",
        "SELECT 'infinity'::TIMESTAMPTZ",
        "SELECT TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
        "SELECT '2020-01-01 00:00:00.123456789'::TIMESTAMP_NS",
        "SELECT make_timestamp(9223372036854775806)",
        "SELECT make_date(2020, 2, 30)",
        "SELECT to_timestamp(1e15)",
        "SELECT to_timestamp('NaN'::DOUBLE)",
        "SELECT TIME '25:00:00'",
        "SELECT '12:00:00.123456789'::TIME_NS",
        "SELECT INTERVAL 1000000000 DAY",
        "SELECT to_days(2147483647) + to_days(1)",
        "SELECT to_years(300000000)",
        "SELECT 99.9::DECIMAL(2,1) * 99999999999999999999999999999999999.9",
        "SELECT {'a': {'b': {'c': TIMESTAMP '290000-01-01'}}}",
        "SELECT [DATE '290000-01-01']",
        "SELECT MAP {'a': TIMESTAMP '290000-01-01'}",
        "SELECT 9223372036854775807 - 100000 + range FROM range(200000)",
        "SELECT format('{} {}', 1)",
        "SELECT substr(v, 9223372036854775807) FROM t",
        "SELECT max(ts) FROM (VALUES ('infinity'::TIMESTAMP)) v(ts)",
        "INSERT INTO t VALUES (9223372036854775808, 'x', NULL)",
    ),
    *_refused(
        "22P02",
        "SELECT TIMESTAMP '2020-01-01' + INTERVAL 300000 YEAR",
        "SELECT 1e38::DECIMAL(38,1)",
        r"SELECT decode('\xFF\xFE'::BLOB)",
        "SELECT decode(b) FROM t",
        "SELECT 'c'::ENUM('a', 'b')",
        """SELECT '{"a": '::JSON""",
        "SELECT 'not a uuid'::UUID",
        "SELECT CASE WHEN range = 100000 THEN 'x' ELSE '1' END::INT FROM range(200000)",
        "SELECT id, v FROM t WHERE v = 1",
        "SELECT from_base64('!!')",
        "SELECT * FROM t LIMIT 'x'",
        "SELECT 1::GEOMETRY",
        "SELECT [1, 'a']",
        "SELECT date_trunc('x', DATE '2020-01-01')",
    ),
    *_refused(
        "42000",
        "SELECT (SELECT id, v FROM t)",
        "SELECT sum(sum(id)) FROM t",
        "SELECT * FROM t LIMIT -1",
        "SELECT 'x'::NOSUCHTYPE",
        "SELECT 1 UNION SELECT 1, 2",
        "SELECT 'a' COLLATE NOSUCH",
    ),
    *_refused(
        "42804",
        "SELECT v + 1 FROM t",
    ),
    *_refused(
        "42P01",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM pg_catalog.pg_class",
    ),
    *_refused(
        "54000",
        "SELECT repeat('x', 3000000)",
        "SELECT repeat(v, 3000000) FROM t",
        "SELECT string_agg(repeat('x', 100000), '') FROM range(100)",
        "SELECT repeat('x', 100000) FROM range(3000)",
        "INSERT INTO t SELECT range + 10, repeat('x', 100000), NULL FROM range(3000)",
    ),
    *_refused(
        "HY000",
        "SELECT list_reduce([], (x, y) -> x + y)",
    ),
]

NESTED: Final = _refused(
    "54000",
    f"SELECT {'(' * 3000}1{')' * 3000}",
    f"SELECT {'+'.join('1' * 3000)}",
    f"SELECT {'NOT ' * 3000}TRUE",
    f"SELECT {'abs(' * 1000}1{')' * 1000}",
    f"SELECT {'(SELECT ' * 300}1{')' * 300}",
    f"SELECT {'CASE WHEN TRUE THEN ' * 500}1{' END' * 500}",
    f"SELECT {'[' * 500}1{']' * 500}",
    f"SELECT 1{'::INT' * 2000}",
    f"SELECT NULL::INT{'[]' * 500}",
    f"CREATE TABLE u (id INT PRIMARY KEY, CHECK ({'(' * 900}id > 0{')' * 900}))",
    f"UPDATE t SET v = {'upper(' * 600}v{')' * 600}",
    f"DELETE FROM t WHERE id = {'(' * 1200}77{')' * 1200}",
)

ATTACKS: Final = [*ANSWERED, *REFUSED, *NESTED]
