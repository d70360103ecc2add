"""`python -m herdbook` is the command `herdbook`."""

from herdbook.cli.main import main

if __name__ == "__main__":
    main()
