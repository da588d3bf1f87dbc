"""The dashboard's web application: who is answered, with which headers, and that only a websocket costs a session."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

pytest.importorskip("bokeh", reason="the extra `web` is not installed")

from bokeh.document import Document
from bokeh.models import Div
from bokeh.server.util import bind_sockets
from bokeh.util.token import generate_jwt_token
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClientConnection, websocket_connect

from glovewire.monitor.web import handlers

SCRIPT = "/static/js/bokeh.min.js"


class Page:
    """A page of one root, and of nothing but its token and nonce."""

    def __init__(self, document: Document) -> None:
        document.add_root(Div(text="x"))

    def text(self, _: object, token: str, nonce: str) -> str:
        return f"{token} {nonce}"


class Served:
    """The application of such pages on a free port, and how many documents it has made."""

    def __init__(self, names: list[str]) -> None:
        self.documents, self.open = 0, set[WebSocketClientConnection]()
        self.app = handlers.application(self._open, names)
        self.app.initialize(IOLoop.current())
        self.app.start()
        sockets, self.port = bind_sockets("127.0.0.1", 0)
        self.server = handlers.PageServer(self.app)
        self.server.add_sockets(sockets)

    def _open(self, document: Document) -> Page:
        self.documents += 1
        return Page(document)

    async def get(self, path: str, **headers: str) -> HTTPResponse:
        request = HTTPRequest(f"http://127.0.0.1:{self.port}{path}", headers=headers, request_timeout=60)
        return await AsyncHTTPClient().fetch(request, raise_error=False)

    async def connect(self, token: str, **headers: str) -> WebSocketClientConnection:
        headers = {"Sec-WebSocket-Protocol": f"bokeh, {token}", **headers}
        connection = await websocket_connect(HTTPRequest(f"ws://127.0.0.1:{self.port}/ws", headers=headers))
        self.open.add(connection)
        return connection

    async def read(self, connection: WebSocketClientConnection) -> str | bytes | None:
        """The next message that the server sends, None once it has closed the connection."""
        message = await connection.read_message()
        if message is None:
            connection.close()  # it warns otherwise
            self.open.discard(connection)
        return message


@contextlib.asynccontextmanager
async def serving(*names: str) -> AsyncIterator[Served]:
    served = Served(list(names))
    try:
        yield served
    finally:
        for connection in list(served.open):
            connection.close()
            while await served.read(connection) is not None:
                pass
        served.server.stop()
        served.app.stop()
        await served.server.close_all_connections()
        AsyncHTTPClient().close()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop of its own."""
    asyncio.run(asyncio.wait_for(test, 120))


def test_only_known_hosts_are_answered_whatever_the_path() -> None:
    async def play() -> None:
        async with serving("board.example") as served:
            for host in ("localhost", "LOCALHOST:80", "10.1.2.3", "[::1]:9", "board.example:1", socket.gethostname()):
                assert (await served.get("/", Host=host)).code == 200, host
            for host in (
                "evil.example",
                f"evil.example:{served.port}",
                "localhost.evil.example",
                "127.0.0.1.evil.example",
            ):
                for path in ("/", SCRIPT, "/ws", "/nothing"):
                    refused = await served.get(path, Host=host)
                    assert refused.code == 403, (host, path)
                    assert b"--allow-host" in refused.body
            for origin in ("http://evil.example:{}", "http://127.0.0.1:1", "null"):
                with pytest.raises(HTTPClientError, match="403"):
                    await served.connect(generate_jwt_token("a"), Origin=origin.format(served.port))
            evil = f"evil.example:{served.port}"
            with pytest.raises(HTTPClientError, match="403"):
                await served.connect(generate_jwt_token("a"), Host=evil, Origin=f"http://{evil}")
            assert served.documents == 1

    run(play())


def test_every_response_has_security_headers_and_every_page_a_nonce() -> None:
    async def play() -> None:
        async with serving() as served:
            nonces = set()
            for path, host in (
                ("/", "localhost"),
                (SCRIPT, "localhost"),
                ("/nothing", "localhost"),
                ("/", "evil.example"),
            ):
                headers = (await served.get(path, Host=host)).headers
                assert headers["X-Frame-Options"] == "DENY"
                assert headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in headers["Content-Security-Policy"]
                assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            for _ in range(2):
                page = await served.get("/")
                found = re.search(r"'nonce-([^']+)'", page.headers["Content-Security-Policy"])
                assert found
                assert page.body.decode().endswith(f" {found[1]}")
                nonces.add(found[1])
            assert len(nonces) == 2

    run(play())


def test_requests_make_no_document_and_a_websocket_makes_one() -> None:
    async def play() -> None:
        async with serving() as served:
            for path in ("/", "/?bokeh-session-id=a", "/autoload.js?bokeh-autoload-element=a", "/metadata"):
                assert (await served.get(path)).code in (200, 404)
            assert served.documents == 1  # the one that the text of the page comes from
            token = (await served.get("/")).body.decode().split()[0]
            origin = f"http://127.0.0.1:{served.port}"
            for _ in range(2):  # the second is the same browser that connects again
                connection = await served.connect(token, Origin=origin)
                assert await served.read(connection) is not None
            assert served.documents == 2

    run(play())


def test_sessions_are_limited_but_known_ones_may_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        monkeypatch.setattr(handlers, "MAX_SESSIONS", 2)
        async with serving() as served:
            first = [await served.connect(generate_jwt_token(name)) for name in ("a", "b")]
            assert [await served.read(each) is None for each in first] == [False, False]
            full = await served.get("/")
            assert full.code == 503
            assert b"Close one" in full.body
            third = await served.connect(generate_jwt_token("c"))
            assert await served.read(third) is None
            assert third.close_code == handlers.TRY_LATER
            again = await served.connect(generate_jwt_token("a"))
            assert await served.read(again) is not None

    run(play())


def test_what_is_not_a_token_closes_the_websocket_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with serving() as served:
            for token in ("x", "e30", "bnVsbA", "W10", generate_jwt_token("a", expiration=-1), generate_jwt_token("")):
                connection = await served.connect(token)
                assert await served.read(connection) is None, token
            assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []

    run(play())


def test_silent_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        monkeypatch.setattr(handlers, "MAX_CONNECTIONS", 2)
        async with serving() as served:
            silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            assert await reader.read() == b""
            for each in (*(writer for _, writer in silent), writer):
                each.close()
                await each.wait_closed()
            while (await served.get("/")).code != 200:
                pass

    run(play())
