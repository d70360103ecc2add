"""The command `herdbook`: the demonstration and the verbs that look at ledgers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import herdbook
import herdbook.demo
from blobit import AsyncBlobs, BlobNotStored, ObjectId, Source
from herdbook.cli.bookie import LOOKING, _processors
from herdbook.cli.late import Late, load
from herdbook.cli.main import COMMANDS, app
from tests.blobit.test_blobs import body


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    for number in range(40):
        path = source / f"folder-{number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(number * 1000))
    (source / "big.bin").write_bytes(body(6_000_000))
    (source / "link").symlink_to("big.bin")
    return source


def test_the_demo_stores_a_folder_loses_a_bookie_and_reads_all_back(
    tmp_path: Path, folder: Path
) -> None:
    answer = call("demo", "--embedded", str(folder), "--data", str(tmp_path / "data"), "--json")
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert report["ok"] and report["files"] == report["read_back"] == 41
    assert report["bytes"] == 6_000_000 + sum(number * 1000 for number in range(40))
    assert report["killed"] == "number 2 of 3"
    assert [Path(skip["path"]).name for skip in report["skipped"]] == ["link"]
    assert report["different"] == []
    ids = dict(line.split("\t")[::-1] for line in Path(report["ids"]).read_text().splitlines())
    assert len(ids) == 41
    with herdbook.open(tmp_path / "data") as book:
        assert book.blobs.get(ids["big.bin"]) == body(6_000_000)


@pytest.mark.parametrize("files", [1, 2, 3])
def test_the_demo_of_a_few_files_kills_a_bookie_before_the_last_one(
    tmp_path: Path, files: int
) -> None:
    for number in range(files):
        (tmp_path / f"{number}.txt").write_bytes(body(1_000))
    answer = call("demo", "--embedded", str(tmp_path), "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["files_after_kill"] == max(1, files // 2)


def test_the_demo_takes_no_more_files_than_it_may(folder: Path) -> None:
    answer = call("demo", "--embedded", str(folder), "--limit", "5", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["files"] == 5


def test_a_demo_that_fails_at_once_shows_no_bars(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").touch()
    answer = call("demo", "--embedded", str(folder), "--data", str(tmp_path / "file"))
    assert answer.exit_code == 1 and "storing" not in answer.output
    assert "Error" in answer.stderr or "Mismatch" in answer.stderr


def test_an_embedded_demo_has_no_cluster_to_keep(folder: Path) -> None:
    answer = call("demo", "--embedded", str(folder), "--keep")
    assert answer.exit_code == 2 and "--keep" in answer.stderr


def test_the_demo_shows_a_table_to_people(folder: Path) -> None:
    answer = call("demo", "--embedded", str(folder))
    assert answer.exit_code == 0, answer.output
    assert "All 41 files came back byte for byte." in answer.stdout
    assert "symbolic link" in answer.stdout


def test_the_demo_fails_when_a_file_comes_back_otherwise(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = herdbook.demo.Stored

    def forgetful(name: str, object_id: ObjectId, digest: bytes) -> herdbook.demo.Stored:
        return real(name, object_id, bytes(32) if name.endswith("7.txt") else digest)

    monkeypatch.setattr("herdbook.demo.Stored", forgetful)
    answer = call("demo", "--embedded", str(folder), "--json")
    assert answer.exit_code == 1
    report = json.loads(answer.stdout)
    assert not report["ok"]
    assert sorted(Path(name).name for name in report["different"]) == [
        "17.txt",
        "27.txt",
        "37.txt",
        "7.txt",
    ]


def test_the_demo_reports_what_could_not_be_stored_and_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AsyncBlobs.put

    async def broken(blobs: AsyncBlobs, source: Source) -> ObjectId:
        if isinstance(source, bytes) and len(source) == 5_000:
            raise BlobNotStored("no bookie took it")
        return await real(blobs, source)

    monkeypatch.setattr(AsyncBlobs, "put", broken)
    answer = call("demo", "--embedded", str(folder), "--json")
    assert answer.exit_code == 1
    report = json.loads(answer.stdout)
    assert report["files"] == report["read_back"] == 40 and not report["ok"]
    assert [name.endswith("5.txt: no bookie took it") for name in report["different"]] == [True]


def test_the_demo_of_an_empty_folder_says_so_and_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = call("demo", "--embedded", str(tmp_path / "empty"))
    assert answer.exit_code == 1
    assert "holds no file" in answer.stderr


def test_the_demo_of_a_folder_that_is_not_there_is_a_wrong_call(tmp_path: Path) -> None:
    assert call("demo", "--embedded", str(tmp_path / "nothing")).exit_code == 2


def test_ledgers_are_listed_shown_and_read(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        object_id = book.blobs.put(b"moo")
    listed = call("ledger", "ls", "--data", str(tmp_path), "--json")
    facts = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [each["ledger"] for each in facts] == [object_id.ledger_id]
    assert (facts[0]["state"], facts[0]["last_entry"], facts[0]["length"]) == ("CLOSED", 0, 3)
    assert facts[0]["custom"] == {"owner": "blobit"}
    number = str(object_id.ledger_id)
    shown = call("ledger", "show", number, "--data", str(tmp_path), "--json")
    assert json.loads(shown.stdout) == {**facts[0], "badly_placed": []}
    assert call("ledger", "read", number, "--data", str(tmp_path)).stdout == "moo"
    read = call("ledger", "read", number, "--data", str(tmp_path), "--json")
    assert json.loads(read.stdout) == {"entry": 0, "base64": "bW9v"}
    assert "blobit" in call("ledger", "ls", "--data", str(tmp_path)).stdout


def test_an_unknown_ledger_is_one_clear_line(tmp_path: Path) -> None:
    with herdbook.open(tmp_path) as book:
        book.blobs.put(b"moo")
    answer = call("ledger", "show", "4711", "--data", str(tmp_path))
    assert answer.exit_code == 1
    assert answer.stderr.startswith("NoSuchLedger: ledger 4711")


def test_looking_at_a_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    assert call("ledger", "ls", "--data", str(tmp_path / "nothing")).exit_code == 2
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("table", [COMMANDS, LOOKING], ids=["herdbook", "bookie"])
def test_the_lines_of_the_help_are_what_the_commands_say_of_themselves(
    table: dict[str, Late],
) -> None:
    for name, command in table.items():
        told = load(name, command).help.partition("\n\n")[0]
        assert " ".join(told.split()) == command.help, name


def test_a_process_imports_its_own_command_only() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from herdbook.cli.main import app;"
        "print(CliRunner().invoke(app, ['bookie', '--help']).stdout);"
        "print(*{'herd', 'blobit', 'broker', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--data" in ended.stdout
    assert ended.stderr.split() == []


def test_processors_are_named_by_numbers_and_spans(tmp_path: Path) -> None:
    common = ("bookie", "--data", str(tmp_path / "b"), "--zookeeper", "127.0.0.1:1/x", "--cpus")
    for wrong in ("one", "0-", "-1", "0,,1", ",", "5-2", "0-99999999"):
        answer = call(*common, wrong)
        assert answer.exit_code == 2 and "0,2-3" in answer.output, wrong
    assert _processors("0,2-4,3") == {0, 2, 3, 4} and _processors("") == frozenset()


def test_a_name_that_the_door_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        getattr(herdbook, "opne")  # noqa: B009


def test_messages_of_an_mbox_are_stored_where_there_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "box").write_bytes(b"From elsa Thu Jan  1 00:00:00 1970\nSubject: Elsa\n\nmoo\n")
    answer = call("demo", "--embedded", str(tmp_path / "box"), "--json")
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.stdout)
    assert (report["folder"], report["files"]) == (str(tmp_path / "box"), 1)


def test_a_file_without_messages_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "box").touch()
    answer = call("demo", "--embedded", str(tmp_path / "box"))
    assert answer.exit_code == 2 and "holds no file that could be sent" in answer.output
