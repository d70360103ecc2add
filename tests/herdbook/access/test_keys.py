"""The keys by which a node recognizes browsers."""

from pathlib import Path

import pytest

from herdbook.access.opening import KEY_FILE, keys_of


@pytest.fixture(autouse=True)
def _unconfigured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERDBOOK_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_folder_keeps_its_key_over_restarts_and_shows_it_to_nobody(tmp_path: Path) -> None:
    [key] = keys_of(str(tmp_path))()
    assert len(key) == 32
    assert keys_of(str(tmp_path))() == (key,)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE]


def test_where_no_key_can_be_kept_each_process_has_its_own(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert keys_of(missing)() != keys_of(missing)()
    assert keys_of("")() != keys_of("")()
    (tmp_path / KEY_FILE).write_text("no key")
    (tmp_path / KEY_FILE).chmod(0o600)
    assert keys_of(str(tmp_path))() != keys_of(str(tmp_path))()
