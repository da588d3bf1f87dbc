"""Build the dashboard's web application: the page, its websocket, and refusals; every response has security headers.

A page request returns prepared text with a fresh session token. Only a websocket that opens with a token creates a
session, with a Bokeh document of its own; there are at most MAX_SESSIONS.
"""

import asyncio
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.ws import WSHandler
from bokeh.util.token import generate_jwt_token, generate_session_id, get_session_id
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.iostream import IOStream
from tornado.web import ErrorHandler, OutputTransform, RequestHandler
from tornado.websocket import WebSocketHandler

MAX_SESSIONS = 32
MAX_CONNECTIONS = 256
IDLE_S = 30
PING_S = 10
FORGET_SESSION_MS = 15_000
FORGET_EVERY_MS = 1_000
MAX_MESSAGE_BYTES = 1 << 16
TRY_LATER, UNREADABLE = 1013, 1008
"""Why a websocket is closed: too many sessions, a malformed token (IANA's registry of WebSocket close codes)."""
FULL = f"The dashboard has {MAX_SESSIONS} open pages, its limit. Close one, then load this page again.\n"

TOKEN, NONCE = "%TOKEN%", "%NONCE%"
"""Placeholders in the text of the page for a session's token and a response's nonce."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval' 'nonce-{nonce}'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""BokehJS sets inline styles, and compiles the code of CustomJS models, for which it needs 'unsafe-eval'."""


class SecurityHeaders(OutputTransform):
    """Adds SECURITY_HEADERS to every response, unless the handler has set them."""

    def transform_first_chunk(
        self,
        status_code: int,
        headers: HTTPHeaders,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Add the headers to the beginning of a response."""
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)
        return status_code, headers, chunk


class Forbidden(RequestHandler):
    """Refuses requests for a foreign host name, with status 403."""

    def prepare(self) -> None:
        """Answer the request, whatever its method."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain")
        self.finish(
            "This dashboard does not answer for that host name. Use the machine's IP address, or start "
            "`glovewire monitor` with --allow-host NAME.\n"
        )


class PageHandler(RequestHandler):
    """Returns the text of the page with a new token and nonce; creates no session."""

    def initialize(self, page: str, sessions: Any) -> None:
        """Keep the page's text, and the Bokeh ApplicationContext, which holds the sessions."""
        self._page, self._sessions = page, sessions

    def get(self) -> None:
        """Return the page, or status 503 when there are too many sessions."""
        if is_full(self._sessions):
            self.set_status(503)
            self.set_header("Content-Type", "text/plain")
            self.finish(FULL)
            return
        nonce = secrets.token_urlsafe(16)
        self.set_header("Content-Security-Policy", PAGE_POLICY.format(nonce=nonce))
        self.set_header("Cache-Control", "no-store")
        self.finish(self._page.replace(TOKEN, generate_jwt_token(generate_session_id())).replace(NONCE, nonce))


class PageSocket(WSHandler):
    """Bokeh's websocket, from pages of this server only, whose sessions are limited and created one at a time."""

    def check_origin(self, origin: str) -> bool:
        """Return whether the page that opens the websocket came from this host and port (the same origin)."""
        return WebSocketHandler.check_origin(self, origin)

    async def open(self) -> None:
        """Create the session of a new token, if there is room for it, and start Bokeh's protocol.

        Creating a session takes about 0.1 s; the lock lets the event loop do other work between two sessions.
        """
        try:
            async with self.settings["creating"]:
                if await self._has_session(self._token or ""):
                    super().open()
        except (ProtocolError, LookupError, RuntimeError, TypeError, ValueError):  # Bokeh's, for an invalid token
            self.close(UNREADABLE, "not a token of this dashboard")

    async def _has_session(self, token: str) -> bool:
        """Create the session if there is none; close the websocket and return False if there is no room."""
        sessions, name = self.application_context, get_session_id(token)
        known = any(session.id == name for session in sessions.sessions)
        if is_full(sessions) and not known:
            self.close(TRY_LATER, "too many open pages")
        elif self.ws_connection is not None:  # the browser may have left while it waited for the lock
            await sessions.create_session_if_needed(name, self.request, token)
        return self.ws_connection is not None


class PageServer(HTTPServer):
    """HTTP server with at most MAX_CONNECTIONS connections besides websockets; it closes any further one at once."""

    _open = 0

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a new connection, or close it."""
        if self._open >= MAX_CONNECTIONS:
            stream.close()
            return
        self._open += 1
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        """Stop counting a connection that has ended or become a websocket."""
        self._open -= 1
        super().on_close(server_conn)


def is_full(sessions: Any) -> bool:
    """Return whether the Bokeh ApplicationContext `sessions` has MAX_SESSIONS sessions."""
    return len(sessions.sessions) >= MAX_SESSIONS


def application(open_page: Callable[[Document], Any], names: Sequence[str]) -> BokehTornado:
    """Return the application that shows documents filled by `open_page`, and refuses requests for `foreign_hosts`."""
    app = BokehTornado(
        {"/": Application(FunctionHandler(open_page))},
        keep_alive_milliseconds=0,  # Bokeh's pings do not close a connection without pongs
        check_unused_sessions_milliseconds=FORGET_EVERY_MS,
        unused_session_lifetime_milliseconds=FORGET_SESSION_MS,
        websocket_max_message_size_bytes=MAX_MESSAGE_BYTES,
        websocket_ping_interval=PING_S,
        transforms=[SecurityHeaders],
        creating=asyncio.Lock(),
    )
    page, sessions = open_page(Document()).text(app.resources(), TOKEN, NONCE), app.applications["/"]
    app.add_handlers(foreign_hosts(names), [(".*", Forbidden)])
    own: list[Any] = [
        ("/", PageHandler, {"page": page, "sessions": sessions}),
        ("/ws", PageSocket, {"application_context": sessions, "bokeh_websocket_path": "/ws"}),
        ("/autoload.js|/metadata", ErrorHandler, {"status_code": 404}),  # Bokeh's create a session for each GET
    ]
    app.add_handlers(".*", own)
    return app


def foreign_hosts(names: Sequence[str]) -> str:
    """Return a regular expression for hosts other than IP addresses, localhost, this machine's name and `names`.

    A page of another site reaches this server through a DNS name that resolves to its address (DNS rebinding), and the
    browser then sends that name as `Host`. An IP address as `Host` cannot be rebound.
    """
    known = "|".join(re.escape(name.lower()) for name in ("localhost", socket.gethostname(), *names))
    return rf"(?!({known}|[\d.]+|\[[\da-f:.]+\])$).*"
