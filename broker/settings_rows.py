"""Limits, weights, reservations, mappings, rates and pauses, as rows.

The state machine keeps them; who leads says what they mean and checks them before.

Invariants:
- A setting has who changed it last, and when, beside its value.
"""

from broker.applying import SettingChanged, Step
from broker.commands import Set
from broker.keys import setting_key
from broker.task import Setting, decode_setting, encode


def change(step: Step, wanted: Set) -> bytes:
    """Answers 1 if the value is another one now, else 0."""
    key = setting_key(wanted.kind, wanted.name)
    row = step.get(key)
    before = None if row is None else decode_setting(row).value
    if before == wanted.value:
        return encode(0)
    if wanted.value is None:
        step.delete(key)
    else:
        step.put(key, encode(Setting(wanted.value, wanted.by, step.now_ms)))
    step.changed(SettingChanged(wanted.kind, wanted.name, wanted.value))
    return encode(1)
