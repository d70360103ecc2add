"""What a seed draws for any run: a network's faults, and settings that make the rare common.

Invariants:
- Each function draws a fixed number of times, so that what is drawn after it does not move.
"""

import random
from typing import Final, Literal

from engine.bookie.settings import BookieSettings
from engine.ledger.settings import ClientSettings
from tests.simulation.network import NetworkFaults

_SURVIVES: Final[tuple[Literal["", "bookie"], ...]] = ("", "", "", "bookie")


def draw_network_faults(rng: random.Random) -> NetworkFaults:
    """How unreliable messages are."""
    return NetworkFaults(
        lost_share=rng.choice([0.0, 0.0, 0.005, 0.03]),
        lost_question_share=rng.choice([0.0, 0.0, 0.02, 0.3]),
        repeated_share=rng.choice([0.0, 0.01, 0.1]),
        silent_share=rng.choice([0.1, 0.5, 1.0]),
        slow_share=rng.choice([0.0, 0.01, 0.1]),
        slow_s=rng.choice([0.05, 0.5, 3.0]),
    )


def draw_bookie_settings(rng: random.Random) -> BookieSettings:
    """Small bounds, so that short runs reach them."""
    segment_bytes = rng.choice([8_000, 60_000, 1 << 20])
    return BookieSettings(
        segment_bytes=segment_bytes,
        ahead_bytes={8_000: 2_000, 60_000: 0, 1 << 20: 16_384}[segment_bytes],
        checkpoint_bytes=rng.choice([5_000, 50_000, 1 << 20]),
        recent_runs_bytes_max=rng.choice([0, 2_000, 1 << 20]),
        index_batch_records=rng.choice([1, 16, 1_024]),
        read_gap_bytes=rng.choice([0, 0, 32_768]),
        ledger_states_max=rng.choice([1, 3, 10_000]),
        synced_mark_ms=rng.choice([50, 500]),
        space_check_ms=500,
        reserve_bytes=rng.choice([1_000, 100_000]),
    )


def draw_client_settings(rng: random.Random, seed: int) -> ClientSettings:
    """Short times and small bounds, so that short runs reach them.

    In a quarter of the runs entries survive the loss of bookies only, not of whole machines.
    """
    append_timeout_ms = rng.choice([300, 1_000, 3_000])
    return ClientSettings(
        survives=random.Random(f"survives {seed}").choice(_SURVIVES),
        append_timeout_ms=append_timeout_ms,
        read_timeout_ms=rng.choice([500, 2_000]),
        recovery_timeout_ms=rng.choice([1_000, 5_000]),
        metadata_timeout_ms=rng.choice([500, 2_000]),
        speculative_read_ms=rng.choice([20, 100]),
        long_poll_ms=rng.choice([200, 1_000]),
        retry_pause_ms=20,
        quarantine_ms=rng.choice([200, 2_000]),
        spare_ms_max=rng.choice([0, 20]),
        straggler_close_ms=rng.choice([10, 200]),
        straggler_bytes_max=rng.choice([2_000, 20_000, 1 << 20]),
        writer_bytes_max=rng.choice([500, 5_000, 1 << 20]),
        writer_parked_bytes_max=rng.choice([3_000, 1 << 20]),
        read_bytes_max=rng.choice([100, 1_000, 100_000]),
    )
