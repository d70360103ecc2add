"""All of a store through one object: a log, objects, tables, what was changed.

    python examples/farm.py ./data

Invariants:
- It says what it did by type, too: `mypy --strict` passes over it as it stands.
"""

import asyncio
import sys

import herdbook


def keep_farm(folder: str) -> list[str]:
    """Write something into each part of a store, and tell what was changed in its tables."""
    with herdbook.open(folder) as book:
        with book.ledgers.create_ledger(metadata={"app": b"milk"}) as writer:
            ids: list[int] = writer.append_many([b"Alma", b"Berta", b"Cilli"])
        reader = book.ledgers.open_ledger(writer.ledger_id)
        names: list[str] = [entry.body.decode() for entry in reader.read(0, ids[-1])]

        photos = book.blobs.create_bucket("photos", exist_ok=True)
        photos.put("2026/alma.jpg", b"brown", content_type="image/jpeg")

        with book.sql(autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS cow (id INT PRIMARY KEY, name TEXT NOT NULL)"
            )
        cows = book.table("cow")
        for number, name in enumerate(names):
            cows.put({"id": number, "name": name})
        cows.delete(1)

        with book.changes(tables=["cow"], follow=False) as changes:
            return [
                f"{change.kind.value} {change.row or change.key_row or change.table.name}"
                for transaction in changes
                for change in transaction.changes
            ]


async def count_cows(folder: str) -> int:
    """The same store for code with an event loop."""
    async with herdbook.open_async(folder) as book:
        cows = await book.table("cow")
        return len([cow["name"] async for cow in cows.scan()])


def main() -> None:
    """The entry point."""
    if len(sys.argv) != 2:
        sys.exit("python examples/farm.py FOLDER")
    folder = sys.argv[1]
    for line in keep_farm(folder):
        print(line)
    print(asyncio.run(count_cows(folder)), "cows")


if __name__ == "__main__":
    main()
