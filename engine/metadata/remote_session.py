"""The server's side of a remote metadata session: one call in, one answer out.

Invariants:
- What a call raises is told to the caller as it is; only its text crosses the wire.
"""

from bisect import bisect_right
from typing import Final

import msgspec

from engine.errors import FrameInvalid
from engine.metadata import remote_messages as messages
from engine.metadata.contract import MetadataStore, ServerClock
from engine.transport.messages import encode

_decode: Final = msgspec.msgpack.Decoder(messages.Call).decode


async def serve(store: MetadataStore, head: bytes) -> bytes:
    """Do the call that a METADATA frame carries; returns the head of its answer.

    Raises `FrameInvalid`, and what the store raises.
    """
    try:
        call = _decode(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameInvalid(f"a metadata call cannot be read: {error}") from error
    return encode(await _answer(store, call))


async def _answer(store: MetadataStore, call: messages.Call) -> messages.Answer:
    match call:
        case messages.Get(key):
            found = await store.get(key)
            if found is not None:
                return messages.Answer(found.version, found.value)
        case messages.Create(key, value, ephemeral):
            return messages.Answer(await store.create(key, value, ephemeral=ephemeral))
        case messages.Set(key, value, version):
            return messages.Answer(await store.set(key, value, version))
        case messages.Delete(key, expected):
            await store.delete(key, expected)
        case messages.Children(prefix, above):
            names = await store.children(prefix)
            start = bisect_right(names, above) if above else 0
            page = names[start : start + messages.NAMES_MAX]
            return messages.Answer(names=page, more=start + len(page) < len(names))
        case messages.Page(prefix, number):
            numbers, more = await store.page(prefix, number)
            few = numbers[: messages.NAMES_MAX]
            return messages.Answer(numbers=few, more=more or len(few) < len(numbers))
        case messages.NextId(counter):
            return messages.Answer(await store.next_id(counter))
        case messages.Sync():
            await store.sync()
        case messages.ServerTime() if isinstance(store, ServerClock):
            return messages.Answer(await store.server_ms())
    return messages.Answer()
