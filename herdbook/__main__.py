"""`python -m herdbook` is the command `herdbook`."""

import sys


def main() -> None:
    """The entry point of the command."""
    if serves(sys.argv[1:]):
        # Before anything that takes long.
        from engine.ports.hangup import hear_early

        hear_early()
    from herdbook.cli.main import main as command

    command()


def serves(words: list[str]) -> bool:
    """Whether these words run a server, which SIGHUP tells to read files again and never ends."""
    match words:
        case ["serve" | "worker", *_] | ["herd", "node", *_] | ["task", "serve", *_]:
            return True
        case ["bookie", first, *_]:
            return first.startswith("-")
        case _:
            return False


if __name__ == "__main__":
    main()
