"""Users of a folder's store: their rows, who knows them, and the commands that change them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine import cluster
from engine.access.audit import NO_AUDIT
from engine.access.door import UserDoor
from engine.access.guesses import Guesses
from engine.access.principal import EVERYBODY, Grant
from engine.access.scram import ScramClient, ScramServer, ScramVerifier
from engine.errors import AccessRefused, InvalidRequest, MetadataUnavailable
from engine.expiry import CLOCK_DIFFERENCE_MS
from engine.ports.clock import SystemClock
from herd.errors import LeaderUnavailable, ProgrammingError
from herd.store import AsyncHerd, open_folder
from herdbook.access.auditing import audit_of
from herdbook.access.authenticator import FRESH_S, PROVED_S, STALE_S, StoreAuthenticator
from herdbook.access.rows import Known, UserRows, UserUnknown
from herdbook.cli.main import app
from herdbook.finding import Configuration, LoginTable, read_configuration

KEY = bytes(range(32))


class Clock(SystemClock):
    """The machine's clock, and what the test adds to it."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.added_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.added_s * 1000)


@asynccontextmanager
async def users(path: Path) -> AsyncIterator[tuple[UserRows, StoreAuthenticator, Clock]]:
    async with open_folder(path) as herd:
        clock = Clock()
        rows = UserRows(herd, clock)
        yield rows, StoreAuthenticator(rows, lambda: (KEY,), clock, herd.workers), clock


async def test_a_store_without_users_is_open_and_one_with_users_is_not(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, clock):
        assert await known.anonymous() == EVERYBODY
        with pytest.raises(AccessRefused):
            await known.password("ann", "pw")
        await rows.add("ann", "ann's word", admin=True)
        clock.added_s += FRESH_S + 1
        with pytest.raises(AccessRefused, match="log in"):
            await known.anonymous()
        assert (await known.password("ann", "ann's word")).admin


async def test_users_grants_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        await rows.add("ann", "ann's word", admin=True)
        await rows.add("ben")
        await rows.grant("ben", Grant("bucket", "letters", "write"))
        token = await rows.make_token("ben", note="nightly")
    async with users(tmp_path) as (rows, known, _clock):
        assert [(each.name, each.admin) for each in await rows.all()] == [
            ("ann", True),
            ("ben", False),
        ]
        assert (await known.password("ann", "ann's word")).name == "ann"
        assert (await known.token(token)).grants == (Grant("bucket", "letters", "write"),)
        server, client = ScramServer("s"), ScramClient("ann", "ann's word", "c")
        first = server.challenge(await known.scram(server.begin(client.first)))
        client.check(server.finish(client.prove(first)))


def test_no_password_and_no_token_is_kept(tmp_path: Path) -> None:
    async def add() -> tuple[Known | None, str]:
        async with users(tmp_path) as (rows, _, _clock):
            await rows.add("ann", "a very secret word", admin=True)
            return await rows.find("ann"), await rows.make_token("ann")

    known, token = asyncio.run(add())
    assert known is not None and known.verifier.startswith("SCRAM-SHA-256$100000:")
    # The secret itself may contain an underscore.
    secrets = (b"a very secret word", token.split("_", 2)[2].encode())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    held = [path for path in files for secret in secrets if secret in path.read_bytes()]
    assert files and not held


async def test_a_wrong_password_a_strange_name_and_one_without_a_password_are_alike(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        await rows.add("ann", "ann's word")
        await rows.add("robot")
        told = set()
        for name, word in (("ann", "x"), ("zoe", "x"), ("robot", "x"), ("robot", ""), ("a b", "x")):
            with pytest.raises(AccessRefused) as refusal:
                await known.password(name, word)
            told.add(str(refusal.value))
        assert len(told) == 1
        ann, zoe = await known.scram("ann"), await known.scram("zoe")
        assert (len(zoe.salt), zoe.iterations) == (len(ann.salt), ann.iterations)
        assert zoe == await known.scram("zoe")


async def test_a_right_password_is_hashed_once_and_again_when_the_user_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("ann", "ann's word")
        await rows.add("ben", "ann's word")
        hashed: list[str] = []
        fits = ScramVerifier.fits

        def counted(verifier: ScramVerifier, password: str) -> bool:
            hashed.append(password)
            return fits(verifier, password)

        monkeypatch.setattr(ScramVerifier, "fits", counted)
        for _ in range(3):
            assert (await known.password("ann", "ann's word")).name == "ann"
            clock.added_s += FRESH_S + 1
        assert hashed == ["ann's word"]
        for wrong in ("ann's", "ann's", "zoe"):
            with pytest.raises(AccessRefused):
                await known.password("ann", wrong)
        assert hashed == ["ann's word", "ann's", "ann's", "zoe"], "who guesses waits each time"
        await known.password("ben", "ann's word")
        await rows.set_password("ann", "another word")
        clock.added_s += FRESH_S + 1
        with pytest.raises(AccessRefused):
            await known.password("ann", "ann's word")
        await known.password("ann", "another word")
        assert hashed[4:] == ["ann's word", "ann's word", "another word"]
        await rows.remove("ann")
        clock.added_s += FRESH_S + 1
        with pytest.raises(AccessRefused):
            await known.password("ann", "another word")


async def test_an_old_password_does_not_log_in_as_a_new_user_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("root", "root's word", admin=True)
        await rows.add("ann", "ann's word")
        # Her rights and her verifier were looked up at different times.
        await known.principal("ann")
        clock.added_s += FRESH_S * 0.9
        await known.password("ann", "ann's word")
        await rows.remove("ann")
        await rows.add("ann", "another word", admin=True)
        # Her row was looked up again in the background.
        clock.added_s += FRESH_S * 1.1
        with pytest.raises(AccessRefused):
            await known.password("ann", "ann's word")
        assert (await known.password("ann", "another word")).admin


async def test_a_token_of_a_removed_user_does_not_log_in_as_a_new_user_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("root", "root's word", admin=True)
        await rows.add("ann", "ann's word")
        token = await rows.make_token("ann")
        # The user was looked up some time before the token.
        await known.principal("ann")
        clock.added_s += FRESH_S * 0.9
        await known.token(token)
        await rows.remove("ann")
        await rows.add("ann", "another word", admin=True)
        clock.added_s += FRESH_S * 0.2
        # Until it is looked up again, it is at most a token of the user who was removed.
        assert not (await known.token(token)).admin
        clock.added_s += FRESH_S + 1
        with pytest.raises(AccessRefused):
            await known.token(token)


async def test_a_known_name_is_looked_up_with_as_many_reads_as_an_unknown_one(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, _, _):
        await rows.add("root", "root's word", admin=True)
        find, grants = rows.find, rows.grants
        reads: list[str] = []

        async def finds(name: str) -> Known | None:
            reads.append("find")
            return await find(name)

        async def reads_grants(name: str) -> tuple[Grant, ...]:
            reads.append("grants")
            return await grants(name)

        rows.find, rows.grants = finds, reads_grants  # type: ignore[method-assign]
        assert await rows.user("root") is not None
        known, reads = reads, []
        assert await rows.user("nobody there") is None
        assert reads == known


async def test_grants_are_those_of_the_user_whose_row_was_read(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, _, _):
        await rows.add("root", "root's word", admin=True)
        await rows.add("ann", "ann's word")
        usual, looks = rows.grants, 0

        async def late(name: str) -> tuple[Grant, ...]:
            nonlocal looks
            found = await usual(name)
            looks += 1
            if looks == 1:
                await rows.remove("ann")
                await rows.add("ann", "another word")
                await rows.grant("ann", Grant("tenant", "elsa", "write"))
            return found

        rows.grants = late  # type: ignore[method-assign]
        user = await rows.user("ann")
        assert user is not None
        assert user.principal.grants == (Grant("tenant", "elsa", "write"),)
        assert ScramVerifier.parse(user.verifier).fits("another word")


async def test_the_token_of_a_connection_is_not_of_a_new_user_of_the_same_name(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, _):
        await rows.add("root", "root's word", admin=True)
        await rows.add("ann", "ann's word")
        before = await known.principal("ann")
        await rows.remove("ann")
        await rows.add("ann", "another word", admin=True)
        known._kept.clear()
        with pytest.raises(AccessRefused, match="another user"):
            await known.session("ann", made_ms=before.made_ms)


@pytest.mark.parametrize("again", ["added", "another password"])
async def test_a_password_is_refused_if_the_user_changes_while_it_is_checked(
    tmp_path: Path, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("root", "root's word", admin=True)
        await rows.add("ann", "ann's word")
        door = UserDoor(known, NO_AUDIT, "barn", Guesses(clock))
        run = known._threads.run

        async def slow(work: Any) -> Any:
            judged = await run(work)
            if again == "added":
                await rows.remove("ann")
                await rows.add("ann", "another word", admin=True)
            else:
                await rows.set_password("ann", "another word")
            clock.added_s += FRESH_S + 1
            return judged

        verifier = await door.verifier("ann", "")
        monkeypatch.setattr(known._threads, "run", slow)
        with pytest.raises(AccessRefused):
            await known.password("ann", "ann's word")
        monkeypatch.setattr(known._threads, "run", run)
        for letting in (door.by_proof, door.session):
            with pytest.raises(AccessRefused):
                await letting("ann", "", verifier)
        verifier = await door.verifier("ann", "")
        assert (await door.by_proof("ann", "", verifier)).principal.name == "ann"
        assert await door.session("ann", "", verifier)


async def test_a_password_that_is_no_longer_used_is_forgotten(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, clock):
        for name in ("ann", "ben", "cat"):
            await rows.add(name, f"{name}'s word")
            await known.password(name, f"{name}'s word")
        clock.added_s += PROVED_S * 0.6
        await known.password("ann", "ann's word")
        clock.added_s += PROVED_S * 0.6
        await known.password("cat", "cat's word")
        assert list(known._proved) == ["ann", "cat"]


async def test_what_is_revoked_ends_when_the_answer_is_old(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("ann", "ann's word")
        await rows.grant("ann", Grant("tenant", "*", "write"))
        token = await rows.make_token("ann")
        session = await known.session("ann")
        assert (await known.token(token)).allows("tenant", "elsa", "write")
        await rows.revoke("ann", "tenant", "*")
        clock.added_s += FRESH_S + 0.1
        assert not (await known.principal("ann")).allows("tenant", "elsa", "read")
        await rows.revoke_token(token.split("_")[1])
        assert (await known.token(session)).name == "ann"
        clock.added_s += FRESH_S + 0.1
        with pytest.raises(AccessRefused):
            await known.token(token)
        await rows.remove("ann")
        clock.added_s += FRESH_S + 0.1
        for ask in (known.principal("ann"), known.token(session)):
            with pytest.raises(AccessRefused):
                await ask


@pytest.mark.parametrize(
    "token", ["", "hbt_", "hbt_x", "hbt__", "hbt_0011223344556677_secret", "hb1.x.y", "\udcff"]
)
async def test_a_token_that_is_none_is_refused(tmp_path: Path, token: str) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("ann", "ann's word")
        good = await rows.make_token("ann", expires_ms=clock.wall_ms() + 60_000)
        for wrong in (token, good[:-1] + ("A" if good[-1] != "A" else "B"), good + "A"):
            with pytest.raises(AccessRefused):
                await known.token(wrong)
        assert (await known.token(good)).name == "ann"
        clock.added_s += 61 + CLOCK_DIFFERENCE_MS // 1_000
        with pytest.raises(AccessRefused):
            await known.token(good)


async def test_nothing_is_kept_of_an_invalid_token(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        await rows.add("ann", "ann's word")
        for number in range(3):
            with pytest.raises(AccessRefused):
                await known.token(f"hbt_{number}{'0' * 10_000}_secret")
        assert not [what for what in known._kept if "0" * 10_000 in str(what)]


async def test_a_new_user_of_an_old_name_inherits_nothing(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("ann", "ann's word")
        await rows.grant("ann", Grant("bucket", "letters", "read"))
        token, session = await rows.make_token("ann"), await known.session("ann")
        caller = await UserDoor(known, NO_AUDIT, "barn", Guesses(clock)).by_token(session, "")
        await rows.remove("ann")
        clock.added_s += FRESH_S + 1
        await rows.add("ann", "another word", admin=True)
        assert (await known.principal("ann")).grants == ()
        for shown in (token, session):
            with pytest.raises(AccessRefused):
                await known.token(shown)
        with pytest.raises(AccessRefused, match="another user"):
            await caller.now()


@pytest.mark.parametrize("name", ["node", "everybody", "nobody", "console"])
async def test_no_user_is_called_what_an_audit_calls_others(tmp_path: Path, name: str) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        with pytest.raises(InvalidRequest, match="another name"):
            await rows.add(name, "moo moo moo")
        assert await rows.find(name) is None


async def test_the_last_administrator_stays_while_there_are_others(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        await rows.add("ann", "ann's word", admin=True)
        await rows.add("ben", "ben's word")
        with pytest.raises(InvalidRequest, match="last administrator"):
            await rows.remove("ann")
        await rows.remove("ben")
        await rows.remove("ann")
        assert not await rows.any()
        with pytest.raises(UserUnknown):
            await rows.remove("ann")


async def test_a_new_password_has_eight_characters(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        await rows.add("ann", "eight ch", admin=True)
        for word in ("w", "1234567", "äöüäöüä"):
            with pytest.raises(InvalidRequest, match="at least 8 characters"):
                await rows.add("ben", word)
            with pytest.raises(InvalidRequest, match="at least 8 characters"):
                await rows.set_password("ann", word)
        assert (await known.password("ann", "eight ch")).admin
        assert [user.name for user in await rows.all()] == ["ann"]


async def test_an_existing_user_with_a_short_password_logs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        with monkeypatch.context() as before:
            before.setattr("herdbook.access.rows.PASSWORD_CHARACTERS_MIN", 1)
            await rows.add("ann", "w", admin=True)
        assert (await known.password("ann", "w")).admin


async def test_of_two_users_who_are_added_at_once_under_one_name_one_is_refused(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        await rows.add("root", "root's word", admin=True)
        words = ["one word", "another word"]
        told = await asyncio.gather(
            *(rows.add("twin", word) for word in words), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in told) == ["InvalidRequest", "NoneType"]
        assert (await known.password("twin", words[told.index(None)])).name == "twin"


async def test_of_two_administrators_who_are_removed_at_once_one_stays(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        for name in ("ann", "ben"):
            await rows.add(name, f"{name}'s word", admin=True)
        await rows.add("cat", "cat's word")
        told = await asyncio.gather(rows.remove("ann"), rows.remove("ben"), return_exceptions=True)
        assert sorted(type(each).__name__ for each in told) == ["InvalidRequest", "NoneType"]
        assert [each.admin for each in await rows.all()] == [True, False]


async def test_what_is_given_to_a_user_who_is_removed_meanwhile_is_given_to_nobody(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        await rows.add("root", "root's word", admin=True)
        for _ in range(5):
            await rows.add("ann", "ann's word")
            given = rows.grant("ann", Grant("bucket", "letters", "read"))
            told = await asyncio.gather(
                rows.remove("ann"), given, rows.make_token("ann"), return_exceptions=True
            )
            assert told[0] is None and {type(each) for each in told[1:]} <= {
                type(None),
                str,
                UserUnknown,
            }
            assert await rows.grants("ann") == () and await rows.tokens("ann") == []


async def test_a_removal_that_fails_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        await rows.add("ann", "ann's word", admin=True)
        await rows.grant("ann", Grant("bucket", "letters", "read"))
        await rows.make_token("ann")

        async def away(name: str) -> tuple[Grant, ...]:
            raise MetadataUnavailable(f"grants of {name} cannot be looked up")

        with monkeypatch.context() as broken, pytest.raises(MetadataUnavailable):
            broken.setattr(rows, "grants", away)
            await rows.remove("ann")
        assert len(await rows.grants("ann")) == 1 and len(await rows.tokens("ann")) == 1


async def test_users_that_cannot_be_looked_up_are_not_unknown(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, clock):
        await rows.add("ann", "ann's word")
        assert (await known.principal("ann")).name == "ann"

        class Away:
            """Tablespaces that nobody leads."""

            async def names(self) -> list[str]:
                raise LeaderUnavailable("nobody leads")

        rows._open.clear()
        rows._herd = Away()  # type: ignore[assignment]
        clock.added_s += FRESH_S + 1
        assert (await known.principal("ann")).name == "ann"
        for ask in (known.principal("zoe"), known.anonymous(), known.token(f"hbt_{0:016x}_y")):
            with pytest.raises(MetadataUnavailable):
                await ask
        clock.added_s += STALE_S
        with pytest.raises(MetadataUnavailable):
            await known.principal("ann")


async def test_who_was_known_a_while_ago_does_not_wait_for_rows_that_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herdbook.access.authenticator.PATIENCE_S", 0.01)
    async with users(tmp_path) as (rows, known, clock), asyncio.timeout(10):
        await rows.add("ann", "ann's word")
        assert not (await known.principal("ann")).admin
        look, go_on, looks = rows.user, asyncio.Event(), 0

        async def slow(name: str) -> Any:
            nonlocal looks
            looks += 1
            await go_on.wait()
            return await look(name)

        rows.user = slow  # type: ignore[method-assign]
        clock.added_s += FRESH_S + 1
        await rows.grant("ann", Grant("bucket", "cows", "read"))
        for _ in range(3):
            assert not (await known.principal("ann")).grants
        assert looks == 1, "the look goes on, and nobody begins another one"
        stranger = asyncio.create_task(known.principal("zoe"))
        clock.added_s += STALE_S
        too_old = asyncio.create_task(known.principal("ann"))
        await asyncio.wait((stranger, too_old), timeout=0.02)
        assert not stranger.done() and not too_old.done(), "nothing is known that counts"
        go_on.set()
        assert (await too_old).grants
        with pytest.raises(AccessRefused):
            await stranger


async def test_a_user_with_frequent_requests_never_waits_for_a_lookup(
    tmp_path: Path,
) -> None:
    async with users(tmp_path) as (rows, known, clock), asyncio.timeout(10):
        await rows.add("ann", "ann's word")
        await known.principal("ann")
        look, go_on, looks = rows.user, asyncio.Event(), 0

        async def slow(name: str) -> Any:
            nonlocal looks
            looks += 1
            await go_on.wait()
            return await look(name)

        rows.user = slow  # type: ignore[method-assign]
        await rows.grant("ann", Grant("bucket", "cows", "read"))
        for _ in range(3):
            clock.added_s += FRESH_S * 0.3
            assert not (await known.principal("ann")).grants
            await asyncio.sleep(0)
        assert looks == 1, "it begins when the answer is half as old as it may be"
        go_on.set()
        await asyncio.gather(*(looking.task for looking in known._asking.values()))
        assert (await known.principal("ann")).grants


async def test_a_login_waits_a_bounded_time_for_rows_that_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with users(tmp_path) as (rows, known, clock), asyncio.timeout(10):
        await rows.add("ann", "ann's word")
        assert (await known.principal("ann")).name == "ann"
        clock.added_s += STALE_S + 1
        go_on = asyncio.Event()
        look = rows.user

        async def looked_late(name: str) -> Any:
            await go_on.wait()
            return await look(name)

        rows.user = looked_late  # type: ignore[method-assign]
        with monkeypatch.context() as soon:
            soon.setattr("herdbook.access.authenticator.WAIT_S", 0.01)
            for ask in (known.password("ann", "ann's word"), known.principal("ann")):
                with pytest.raises(MetadataUnavailable, match="system has no leader"):
                    await ask
        late = asyncio.create_task(known.password("ann", "ann's word"))
        go_on.set()
        assert (await late).name == "ann"


async def test_who_asks_at_the_same_time_shares_the_answer(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, known, _clock):
        await rows.add("ann", "ann's word")
        looks: list[str] = []
        look = rows.user

        async def counted(name: str) -> Any:
            looks.append(name)
            return await look(name)

        rows.user = counted  # type: ignore[method-assign]
        await asyncio.gather(*(known.principal("ann") for _ in range(50)))
        assert looks == ["ann"]


async def test_users_are_rows_that_sql_sees(tmp_path: Path) -> None:
    async with users(tmp_path) as (rows, _, _clock):
        await rows.add("ann", "ann's word", admin=True)
        herd: AsyncHerd = rows._herd  # type: ignore[assignment]
        session = await herd.session("system")
        assert list((await session.execute("SELECT name, admin FROM users")).rows) == [
            ("ann", True)
        ]
        await session.close()
        with pytest.raises(ProgrammingError):
            await herd.session("systems")


# Commands


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")

    async def make() -> None:
        async with cluster.open(folder):
            return

    asyncio.run(make())
    return str(folder)


def said(store: str, *arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["user", *arguments, "--url", store], input=typed)


def test_the_commands_add_grant_list_and_remove(store: str, tmp_path: Path) -> None:
    assert said(store, "add", "ann", "--admin", "--no-password").exit_code == 0
    word = tmp_path / "word"
    word.write_text("ben's word\n")
    word.chmod(0o600)
    assert said(store, "add", "ben", "--password-file", str(word)).exit_code == 0
    assert said(store, "grant", "ben", "tablespace", "Shop", "write").exit_code == 0
    token = said(store, "token", "ben", "--for", "12h", "--note", "nightly").stdout.strip()
    assert token.startswith("hbt_")
    facts = [json.loads(line) for line in said(store, "ls", "--json").stdout.splitlines()]
    assert [each["name"] for each in facts] == ["ann", "ben"]
    assert facts[1]["grants"] == [{"kind": "tablespace", "name": "shop", "right": "write"}]
    assert facts[1]["tokens"][0]["note"] == "nightly" and token not in said(store, "ls").stdout
    assert said(store, "token", "ben", "--revoke", token.split("_")[1]).exit_code == 0
    assert said(store, "revoke", "ben", "tablespace", "shop").exit_code == 0
    assert said(store, "passwd", "ben", "--password-file", "-", typed="other word\n").exit_code == 0
    assert said(store, "rm", "ben").exit_code == 0
    assert "open" in said(store, "rm", "ann").output


def test_the_commands_say_in_a_line_what_they_did(tmp_path: Path) -> None:
    async def make() -> None:
        async with cluster.open(tmp_path / "data"):
            return

    asyncio.run(make())
    at = str(tmp_path / "data")
    assert said(at, "ls").stdout == "no users: anybody who reaches the store can use it\n"
    assert said(at, "add", "bob", "--no-password").stdout == "user bob is added\n"
    again = said(at, "add", "bob", "--no-password")
    assert again.exit_code == 1 and "herdbook user passwd bob" in again.stderr
    assert said(at, "grant", "bob", "bucket", "cows", "read").stdout == "bob may read bucket cows\n"
    revoked = said(at, "revoke", "bob", "bucket", "cows")
    assert revoked.stdout == "bob has no grant to bucket cows any more\n"
    assert said(at, "rm", "bob").stdout == "user bob is removed\n"


@pytest.mark.parametrize(
    ("arguments", "typed", "status"),
    [
        (("add", "eve"), "", 2),
        (("add", "eve", "--password-file", "-"), "\n", 2),
        (("add", "eve", "--password-file", "nowhere"), None, 2),
        (("add", "two words", "--no-password"), None, 1),
        (("add", "eve", "--password", "word"), None, 2),
        (("passwd", "eve", "--password-file", "-"), "a word of eve\n", 1),
        (("add", "eve", "--password-file", "-"), "seven c\n", 1),
        (("passwd", "ann", "--password-file", "-"), "seven c\n", 1),
        (("rm", "eve"), None, 1),
        (("grant", "eve", "tablespace", "shop", "own"), None, 2),
        (("grant", "eve", "barn", "shop", "read"), None, 2),
        (("revoke", "eve", "bucket", "a"), None, 1),
        (("token", "eve", "--for", "soon"), None, 2),
        (("token", "eve", "--revoke", "00"), None, 1),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    store: str, arguments: tuple[str, ...], typed: str | None, status: int
) -> None:
    answer = said(store, *arguments, typed=typed)
    assert answer.exit_code == status, answer.output
    assert "Traceback" not in answer.output


def test_a_cluster_without_a_secret_takes_no_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    answer = said("herdbook://nowhere:1/x", "add", "ann", "--no-password")
    assert answer.exit_code == 1 and "secret_file" in answer.output


# The login


def test_the_login_is_the_arguments_the_environments_or_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HERDBOOK_USER", "HERDBOOK_PASSWORD_FILE", "HERDBOOK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "word").write_text("ann's word\n")
    (tmp_path / "word").chmod(0o600)
    (tmp_path / "token").write_text("hbt_1_2\n")
    (tmp_path / "token").chmod(0o600)
    file = tmp_path / "config.toml"
    file.write_text('[login]\nuser = "ann"\npassword_file = "word"\n')
    security = read_configuration(file).make_security()
    assert (security.user, security.password, security.logs_in) == ("ann", "ann's word", True)
    assert "word" not in repr(security) and "hbt" not in repr(security)
    file.write_text('[login]\ntoken_file = "token"\n')
    assert read_configuration(file).make_security().token == "hbt_1_2"
    monkeypatch.setenv("HERDBOOK_TOKEN", "hbt_3_4")
    assert read_configuration(file).make_security().token == "hbt_3_4"
    monkeypatch.setenv("HERDBOOK_USER", "ben")
    with pytest.raises(InvalidRequest, match="not both"):
        read_configuration(file).make_security()
    monkeypatch.delenv("HERDBOOK_TOKEN")
    with pytest.raises(InvalidRequest, match="no password here"):
        Configuration(login=LoginTable()).make_security()
    monkeypatch.setenv("HERDBOOK_PASSWORD_FILE", str(tmp_path / "word"))
    assert read_configuration(file).make_security().user == "ben"
    assert not read_configuration(file).make_security().as_node().logs_in


def test_the_audit_is_a_file_of_its_own_that_others_cannot_read(tmp_path: Path) -> None:
    audit = audit_of(tmp_path / "audit", "herd")
    audit.note("ann", "log in", "herd", allowed=True)
    file = tmp_path / "audit" / "audit-herd.jsonl"
    assert json.loads(file.read_text())["who"] == "ann"
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidRequest):
        audit_of(file, "herd")


def test_a_moved_audit_file_is_created_again(tmp_path: Path) -> None:
    audit, file = audit_of(tmp_path, "broker"), tmp_path / "audit-broker.jsonl"
    audit.note("ann", "log in", "broker", allowed=True)
    file.rename(tmp_path / "moved")
    audit.note("ben", "log in", "broker", allowed=True)
    file.unlink()
    audit.note("cow", "log in", "broker", allowed=True)
    assert [json.loads(each.read_text())["who"] for each in (tmp_path / "moved", file)] == [
        "ann",
        "cow",
    ]
    assert file.stat().st_mode & 0o077 == 0
