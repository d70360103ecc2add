"""A crash matrix: every way to run, killed with SIGKILL at a drawn moment and started again.

    python -m tests.crash_matrix --rounds 300 [--row NAME] [--seed S] [--jobs 1] [--out FILE]

- `rows.py`: the ways to run, as data.
- `client.py`: programs that use a store, and note what was acknowledged; and one that judges.
- `processes.py`: a command that is started, killed whole or in part, and started again.
- `rounds.py`: one round of a row, and what it came to.
"""
