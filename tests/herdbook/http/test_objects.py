"""Objects over HTTP: in and out, in ranges, on conditions, cut off, and under names that lie."""

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from blobit.errors import BlobUnreadable, InvalidName
from blobit.tables import ObjectInfo
from engine.ports.clock import SystemClock
from herdbook.http.errors import HttpError
from herdbook.http.objects import Outgoing
from herdbook.http.ranges import Slice, etags_of, parse_range
from herdbook.http.settings import WebSettings
from herdbook.http.transfers import Transfers
from tests.herdbook.http.yard import API, Asker, Node, pieces

MIB = 1024 * 1024
BUCKET = f"{API}/buckets/alma/objects"
BODY = bytes(range(256)) * 4


@pytest.fixture(scope="module")
def ask(node: Node) -> Asker:
    """Asks as everybody, with one object there."""
    asker = node.open()
    put(asker, "there", BODY, {"Content-Type": "image/svg+xml"})
    return asker


def put(ask: Asker, name: str, body: object, headers: dict[str, str] | None = None) -> str:
    """Put an object; its ETag."""
    reply = ask("PUT", f"{BUCKET}/{quote(name, safe='')}", content=body, headers=headers)
    assert reply.status_code == 201, reply.text
    return reply.headers["etag"]


@pytest.mark.parametrize("kind", ["text/plain\r\nx-herd: elsa", "text/\u4e66"])
def test_an_object_whose_type_is_no_header_is_got_as_bytes(
    node: Node, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    node.open()

    async def put_as_before() -> None:
        bucket = await node.house.blobs.bucket("alma")
        await bucket.put("odd", BODY, content_type=kind)

    with pytest.raises(InvalidName, match="content type"):
        node.loop.run(put_as_before)
    monkeypatch.setattr("blobit.bucket.check_content_type", str)
    node.loop.run(put_as_before)
    reply = httpx.get(f"{node.url}{BUCKET}/odd")
    assert (reply.status_code, reply.content) == (200, BODY)
    assert reply.headers["content-type"] == "application/octet-stream"
    assert "x-herd" not in reply.headers


def test_what_was_put_is_got_with_its_type_and_metadata(ask: Asker) -> None:
    metadata = {"X-Herdbook-Metadata": '{"cow":"Elsa \\u00fc"}'}
    etag = put(ask, "round/trip", BODY, {"Content-Type": "text/plain"} | metadata)
    reply = ask("GET", f"{BUCKET}/round/trip")
    assert reply.content == BODY and reply.headers["etag"] == etag
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["x-herdbook-metadata"] == metadata["X-Herdbook-Metadata"]
    head = ask("HEAD", f"{BUCKET}/round/trip")
    assert head.content == b"" and head.status_code == 200
    same = ("etag", "content-length", "content-type", "content-disposition", "last-modified")
    assert [head.headers[name] for name in same] == [reply.headers[name] for name in same]
    assert head.headers["content-length"] == str(len(BODY))
    assert ask("DELETE", f"{BUCKET}/round/trip").json() == {"changed": True}
    for method in ("GET", "HEAD", "DELETE"):
        assert ask(method, f"{BUCKET}/round/trip").status_code == 404


@pytest.mark.parametrize("name", ["empty", "small", "large"])
def test_a_body_without_its_length_is_taken_whole(ask: Asker, name: str) -> None:
    count = {"empty": 0, "small": 3, "large": 100}[name]
    piece = os.urandom(64 * 1024)
    put(ask, name, pieces(piece, count))
    reply = ask("GET", f"{BUCKET}/{name}")
    assert reply.content == piece * count


def test_an_object_is_never_a_page(ask: Asker) -> None:
    reply = ask("GET", f"{BUCKET}/there")
    assert reply.headers["content-disposition"].startswith("attachment; ")
    assert reply.headers["content-security-policy"].startswith("sandbox;")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "name",
    [
        "<script>alert(1)</script>",
        '"; filename="evil.html',
        "a\r\nSet-Cookie: x=y",
        "kühe/größe 100%.txt",
        "a/../b",
        "%2e%2e/x",
        "a//b///",
        "emoji-🐄",
        "?query#fragment",
        "objects/x/objects",
    ],
)
def test_names_that_look_like_something_else_are_names(ask: Asker, name: str) -> None:
    put(ask, name, name.encode())
    reply = ask("GET", f"{BUCKET}/{quote(name, safe='')}")
    assert reply.content == name.encode() and "set-cookie" not in reply.headers
    plain = reply.headers["content-disposition"].partition('filename="')[2].partition('"')[0]
    assert plain and not set(plain) & set('<>";\r\n/%')
    listed = ask.json("GET", "/buckets/alma/objects", params={"prefix": name})["objects"]
    assert [each["name"] for each in listed] == [name]


@pytest.mark.parametrize("said", [b'{"\xe9": ""}', b'{"cow": "\xff"}', b"[" * 9_000, b'{"a": 1}'])
def test_metadata_that_is_no_json_of_texts_is_refused(ask: Asker, said: bytes) -> None:
    headers: Any = {"X-Herdbook-Metadata": said}
    reply = ask("PUT", f"{BUCKET}/cow", content=b"moo", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_metadata")


def test_an_encoded_slash_is_a_slash(ask: Asker) -> None:
    put(ask, "folder/elsa", b"one")
    assert ask("GET", f"{BUCKET}/folder/elsa").content == b"one"
    assert ask("GET", f"{BUCKET}/folder%2Felsa").content == b"one"
    assert ask("GET", f"{BUCKET}/folder%252Felsa").status_code == 404


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD", "DELETE"])
@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_clients_take_out_of_a_path_is_refused(
    node: Node, method: str, name: str
) -> None:
    head = f"{method} {BUCKET}/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    assert spoken(node, head).startswith(b"HTTP/1.1 400 ")


def test_bytes_that_are_no_text_are_no_name(ask: Asker) -> None:
    assert ask("PUT", f"{BUCKET}/%ff%fe", content=b"x").status_code == 400
    assert ask("PUT", f"{BUCKET}/", content=b"x").status_code == 400


RANGES = {
    "bytes=0-0": (0, 1),
    "bytes=0-1023": (0, 1024),
    "bytes=10-19": (10, 20),
    "bytes=1000-": (1000, 1024),
    "bytes=1000-9999": (1000, 1024),
    "bytes=-1": (1023, 1024),
    "bytes=-9999": (0, 1024),
    "BYTES = 5 - 6": (5, 7),
}


@pytest.mark.parametrize("header", RANGES)
def test_a_range_is_that_part_and_says_so(ask: Asker, header: str) -> None:
    first, end = RANGES[header]
    reply = ask("GET", f"{BUCKET}/there", headers={"Range": header})
    assert (reply.status_code, reply.content) == (206, BODY[first:end])
    assert reply.headers["content-range"] == f"bytes {first}-{end - 1}/{len(BODY)}"
    head = ask("HEAD", f"{BUCKET}/there", headers={"Range": header})
    assert (head.status_code, head.headers["content-length"]) == (206, str(end - first))


@pytest.mark.parametrize("header", ["bytes=1024-", "bytes=9999-10000", "bytes=-0"])
def test_a_range_that_cannot_be_had_is_refused(ask: Asker, header: str) -> None:
    reply = ask("GET", f"{BUCKET}/there", headers={"Range": header})
    assert reply.status_code == 416 and reply.headers["content-range"] == f"bytes */{len(BODY)}"
    assert reply.json()["error"]["code"] == "range_not_there"


@pytest.mark.parametrize(
    "header", ["bytes=", "bytes=x", "bytes=4-2", "lines=1-2", "bytes=-", "1-2"]
)
def test_what_is_no_range_is_passed_over(ask: Asker, header: str) -> None:
    reply = ask("GET", f"{BUCKET}/there", headers={"Range": header})
    assert (reply.status_code, reply.content) == (200, BODY)


@pytest.mark.parametrize("header", ["bytes=0-1,4-5", "bytes=-1, 0-", "bytes=0-1,4096-"])
def test_several_ranges_at_once_are_answered_with_the_whole(ask: Asker, header: str) -> None:
    reply = ask("GET", f"{BUCKET}/there", headers={"Range": header})
    assert (reply.status_code, reply.content) == (200, BODY)
    assert "content-range" not in reply.headers


def test_a_range_of_nothing_is_not_there() -> None:
    for header in ("bytes=0-", "bytes=-5", "bytes=0-0"):
        with pytest.raises(HttpError) as refused:
            parse_range(header, 0)
        assert refused.value.status == 416


def test_a_download_goes_on_where_it_was_only_in_the_same_version(ask: Asker) -> None:
    etag = put(ask, "resumed", b"0123456789")
    half = {"Range": "bytes=5-", "If-Range": etag}
    assert ask("GET", f"{BUCKET}/resumed", headers=half).content == b"56789"
    put(ask, "resumed", b"abcdefghij")
    reply = ask("GET", f"{BUCKET}/resumed", headers=half)
    assert (reply.status_code, reply.content) == (200, b"abcdefghij")


def test_looks_and_changes_can_be_made_conditional(ask: Asker) -> None:
    path = f"{BUCKET}/conditional"
    only_new = {"If-None-Match": "*"}
    first = put(ask, "conditional", b"1", only_new)
    assert ask("PUT", path, content=b"2", headers=only_new).status_code == 412
    assert ask("GET", path, headers={"If-None-Match": f'"x", W/{first}'}).status_code == 304
    assert ask("GET", path, headers={"If-None-Match": '"x"'}).content == b"1"
    assert ask("GET", path, headers={"If-Match": '"x"'}).status_code == 412
    assert ask("GET", path, headers={"If-Match": first}).content == b"1"
    second = put(ask, "conditional", b"2", {"If-Match": first})
    assert ask("PUT", path, content=b"3", headers={"If-Match": first}).status_code == 412
    put(ask, "conditional", b"3", {"If-Match": f'"x", {second}'})
    assert ask("DELETE", path, headers={"If-Match": second}).status_code == 412
    assert ask("DELETE", path, headers={"If-Match": "*"}).status_code == 200
    assert ask("PUT", path, content=b"4", headers={"If-Match": "*"}).status_code == 412
    for wrong in ("x", '"x', '"a" "b"', ""):
        told = ask("PUT", path, content=b"4", headers={"If-Match": wrong})
        assert told.status_code == 400 and told.json()["error"]["code"] == "invalid_etag"
    assert ask("GET", path).status_code == 404
    assert etags_of("*") is None


def test_what_is_too_long_or_wrong_is_refused_and_leaves_nothing(node: Node) -> None:
    ask = node.open(WebSettings(object_bytes_max=1_000_000))
    path = f"{BUCKET}/refused"
    assert ask("PUT", path, content=b"x" * 1_000_001).status_code == 413
    assert ask("PUT", path, content=pieces(b"x" * 1_000, 1_001)).status_code == 413
    wrong = {"X-Herdbook-Metadata": "[1]"}
    assert ask("PUT", path, content=b"x", headers=wrong).status_code == 400
    assert ask("PUT", path, content=b"x", params={"expires_ms": "soon"}).status_code == 400
    assert ask("PUT", f"{API}/buckets/none/objects/x", content=b"x").status_code == 404
    assert ask("GET", path).status_code == 404
    crowded = node.open(WebSettings(transfers_max=1))
    statuses = node.loop.run(lambda: _at_once(crowded, path))
    assert sorted(statuses) == [201, 503]


async def _at_once(ask: Asker, path: str) -> list[int]:
    """Two puts, of which one is at its bytes when the other one comes."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> object:
        begun.set()
        await go_on.wait()
        yield b"x"

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=ask.app), base_url="http://localhost"
    ) as client:
        first = asyncio.create_task(client.put(path, content=slow()))  # type: ignore[arg-type]
        await begun.wait()
        second = await client.put(path, content=b"y")
        go_on.set()
        return [(await first).status_code, second.status_code]


def test_an_object_expires_when_its_put_said_so(ask: Asker) -> None:
    reply = ask("PUT", f"{BUCKET}/expired", content=b"x", params={"expires_ms": 1})
    assert reply.status_code == 201 and reply.json()["expires_ms"] == 1
    assert ask("GET", f"{BUCKET}/expired").status_code == 404


def test_a_list_is_folded_and_goes_on(ask: Asker) -> None:
    for name in ("fold/a", "fold/b/1", "fold/b/2", "fold/c"):
        put(ask, name, b"x")
    query = {"prefix": "fold/", "delimiter": "/", "limit": 2}
    page = ask.json("GET", "/buckets/alma/objects", params=query)
    assert [each["name"] for each in page["objects"]] == ["fold/a"]
    assert page["prefixes"] == ["fold/b/"]
    rest = ask.json("GET", "/buckets/alma/objects", params=query | {"after": page["after"]})
    assert [each["name"] for each in rest["objects"]] == ["fold/c"] and rest["after"] is None
    told = ask.json("GET", "/buckets/alma/objects", params={"after": "x"}, expect=400)
    assert told["error"]["code"] == "invalid_token"


class Breaking:
    """A bucket whose bytes cannot be read to their end."""

    async def stream_version(self, *_: object) -> AsyncGenerator[bytes, None]:
        """Half of an object."""
        yield b"half"
        raise BlobUnreadable("no bookie answers")


async def test_a_reply_that_breaks_off_is_not_taken_for_all_of_it() -> None:
    bucket: Any = Breaking()
    info = ObjectInfo("x", 8, "etag", "", 0, None, b"")
    transfers = Transfers(WebSettings(), SystemClock())
    reply = Outgoing(bucket, info, Slice(0, 8), transfers, 200, {"content-length": "8"})
    sent: list[Any] = []
    hung_up = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await hung_up.wait()

    await reply({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert [each.get("body") for each in sent] == [None, b"half"]
    assert all(each.get("more_body", True) for each in sent), "nobody said that this was the end"
    assert transfers.running == 0


# Over a socket


def spoken(node: Node, head: str, body: bytes = b"") -> bytes:
    """What a server says to bytes after which its client is gone."""
    where = urlsplit(node.url)
    assert where.hostname and where.port
    with socket.create_connection((where.hostname, where.port), timeout=10) as made:
        made.sendall(head.encode() + body)
        made.shutdown(socket.SHUT_WR)
        found = b""
        while part := made.recv(65_536):
            found += part
        return found


def test_a_body_that_is_cut_in_the_middle_leaves_nothing_that_anybody_sees(node: Node) -> None:
    path = f"{BUCKET}/cut"
    length = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n"
    chunked = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    for head, body in (
        (length, b"x" * 100),
        (length, b"x" * 8_999_999),
        (chunked, b"5\r\nhello\r\n"),
        (chunked, b"500000\r\n" + b"x" * 0x500000 + b"\r\n"),
        (chunked, b"5\r\nhello\r\nz\r\n"),
    ):
        assert b" 201 " not in spoken(node, head, body)
        while node.served.gate.transfers.running:
            # Its handler has yet to hear that nothing more comes.
            httpx.get(node.url + "/health/live")
        assert httpx.get(node.url + path).status_code == 404
    assert httpx.put(node.url + path, content=iter([b"hel", b"lo"])).status_code == 201
    assert httpx.get(node.url + path).content == b"hello"


def test_a_hundred_read_at_once_and_each_gets_all_of_it(node: Node) -> None:
    body = os.urandom(2 * MIB)
    httpx.put(f"{node.url}{BUCKET}/crowd", content=body)
    wanted = hashlib.sha256(body).digest()
    limits = httpx.Limits(max_connections=100)
    with httpx.Client(limits=limits, timeout=60) as client, ThreadPoolExecutor(100) as pool:
        got = pool.map(lambda _: client.get(f"{node.url}{BUCKET}/crowd").content, range(100))
        assert {hashlib.sha256(each).digest() for each in got} == {wanted}


def test_a_put_over_a_buckets_quota_is_refused_before_its_body_is_read(ask: Asker) -> None:
    quota = f"{API}/buckets/alma/quota"
    use = ask("GET", quota).json()
    try:
        told = ask("PUT", quota, json={"quota_bytes": use["bytes"] + 10})
        assert told.json() == use | {"quota_bytes": use["bytes"] + 10}
        reply = ask("PUT", f"{BUCKET}/much", content=b"x" * 11)
        assert (reply.status_code, reply.json()["error"]["code"]) == (507, "quota_exceeded")
        reply = ask("PUT", f"{BUCKET}/much", content=pieces(b"x" * 11, 1))
        assert reply.status_code == 507
        put(ask, "little", b"x" * 10)
        told = ask("GET", f"{API}/quotas").json()["buckets"]
        assert [each["bytes"] for each in told if each["bucket"] == "alma"] == [use["bytes"] + 10]
    finally:
        assert ask("PUT", quota, json={"quota_bytes": 0}).status_code == 200
