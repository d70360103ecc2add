"""Building a checkpoint's pages in the test's own process: a child costs a second."""

from collections.abc import Callable
from typing import Any

from herd.checkpoint.building import build
from herd.checkpoint.child import Builder, ReadPage, answer
from herd.checkpoint.manifest import Page, encode_manifest
from herd.checkpoint.order import Order


async def in_this_process(
    order: Order, read: ReadPage, *, asked: Callable[[Page], Any] = lambda page: None
) -> bytes:
    """What the child does; `asked` hears of each page that it asks for."""
    begin: Builder = build
    building = begin(order)
    try:
        page = next(building)
        while True:
            asked(page)
            page = building.send(await answer(page, read))
    except StopIteration as ended:
        return encode_manifest(ended.value)
