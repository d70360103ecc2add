"""Rows written lately are found without the storage, and never instead of what it has."""

from hypothesis import given
from hypothesis import strategies as st

from engine.state.recent import Recent
from engine.state.stored import StateSettings
from tests.engine.state.machines import SimMachine, pass_time
from tests.engine.state.state_contract import at, fill
from tests.simulation.state import SimStorage

SMALL = StateSettings(gather_bytes=10_000, gather_ms=50, recent_bytes=2_000)


class Looked(SimStorage):
    """A storage that counts the looks for one row."""

    looks = 0

    def get(self, key: bytes) -> bytes | None:
        self.looks += 1
        return super().get(key)


def test_a_row_written_lately_is_found_without_a_look_into_the_storage() -> None:
    machine, storage = SimMachine(1), Looked()

    async def main() -> None:
        machine.states.storage = storage
        state = machine.states.open(machine.workers, SMALL)
        fill(state, {b"a": b"1", b"gone": b"1"}, 1)
        await pass_time(1)
        state.delete(b"gone")
        state.commit(at(2))
        await pass_time(1)
        assert state.unwritten_bytes == 0
        assert (state.get(b"a"), state.get_row(b"gone")) == (b"1", None)
        assert storage.looks == 0
        assert state.get(b"other") is None and storage.looks == 1
        await state.close()

    machine.loop.run(main(), until_s=600)


def test_what_was_written_before_a_state_was_cleared_is_forgotten() -> None:
    machine, storage = SimMachine(1), Looked()

    async def main() -> None:
        machine.states.storage = storage
        state = machine.states.open(machine.workers, SMALL)
        fill(state, {b"a": b"1"}, 1)
        await state.flush()
        await state.clear()
        assert state.get(b"a") is None
        await state.restore([(b"a", b"restored")])
        await state.restored(at(9))
        assert state.get(b"a") == b"restored"
        await state.close()

    machine.loop.run(main(), until_s=600)


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from([b"%d" % number for number in range(9)]),
                st.none() | st.binary(max_size=2),
                min_size=1,
                max_size=4,
            ),
            st.integers(1, 60),
        ),
        max_size=30,
    )
)
def test_nothing_older_is_found_than_what_was_written_last(
    written: list[tuple[dict[bytes, bytes | None], int]],
) -> None:
    recent, storage = Recent(100), dict[bytes, bytes | None]()
    for changes, size_bytes in written:
        recent.take(changes, size_bytes)
        storage |= changes
        for key, value in storage.items():
            found = next((layer[key] for layer in recent.layers if key in layer), value)
            assert found == value
        if size_bytes <= 50:
            assert changes.items() <= recent.layers[0].items()
