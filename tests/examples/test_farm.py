"""The farm of the examples, typed as a newcomer would."""

import asyncio
import sys
from pathlib import Path

import pytest

from examples.farm import count_cows, keep_farm, main


def test_the_farm_is_kept_again_in_the_same_folder(tmp_path: Path) -> None:
    for _ in range(2):
        assert "delete {'id': 1}" in keep_farm(str(tmp_path / "data"))
    assert asyncio.run(count_cows(str(tmp_path / "data"))) == 2


def test_the_farm_without_a_folder_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["farm.py"])
    with pytest.raises(SystemExit, match=r"python examples/farm.py FOLDER"):
        main()
