"""A crash matrix: every way to run, killed with SIGKILL at a drawn moment and started again.

    python -m tests.crash_matrix --rounds 300 [--row NAME] [--seed S] [--jobs 1] [--out FILE]

- `rows.py`: the ways to run, as data.
- `client.py`: programs that use a store and record what was acknowledged, and one that checks it.
- `processes.py`: starts a command, kills all or some of its processes, and starts it again.
- `rounds.py`: one round of a row, and its result.
"""
