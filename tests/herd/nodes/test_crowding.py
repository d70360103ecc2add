"""A node that runs more than its memory is divided for."""

from dataclasses import replace

import pytest

from tests.herd.nodes.yard import SETTINGS, Yard, in_yard


def test_a_node_that_runs_more_tablespaces_than_its_memory_is_divided_for_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> list[str]:
        return [each for each in caplog.messages if "memory is divided" in each]

    async def script(yard: Yard) -> None:
        await yard.add("a", settings=replace(SETTINGS, replicas_planned=2))
        for name in ("one", "two"):
            await yard.commands.create(name, expected=1)
            await yard.led(name, by="a")
        assert warnings() == []
        for name in ("three", "four"):
            await yard.commands.create(name, expected=1)
            await yard.led(name, by="a")
        [said] = warnings()
        assert "runs 3 tablespaces" in said and "for 2" in said

    in_yard(script)
