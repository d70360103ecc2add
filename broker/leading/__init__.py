"""The leader's part of a broker: its memory and duties for one term."""
