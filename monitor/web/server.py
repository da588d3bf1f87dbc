"""Serve the browser dashboard: Bokeh's own server, in the caller's thread, with every resource from this machine.

Every browser tab gets its own `page.Page`. The event loop calls `step` between the browsers' requests, so that one
thread is enough. No page requests anything from another host.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from glovewire.common.errors import BindError, GlovewireError, require_extra

from ..history.history import RunHistory
from .neighbours import NeighbourLookup

if TYPE_CHECKING:
    from bokeh.document import Document

STEP_MS = 50
KEEP_ALIVE_MS = 10_000
FORGET_PAGE_MS = 15_000


def serve(
    histories: list[RunHistory],
    host: str,
    port: int,
    *,
    lookups: Sequence[NeighbourLookup],
    step: Callable[[float], None] = lambda _: None,
    silent: Callable[[], Sequence[str]] = tuple,
    stopped: Callable[[], bool],
) -> None:
    """Serve `histories` at http://host:port/ until `stopped`, calling `step(0.0)` every STEP_MS.

    `lookups` find nearest words, one object per history; `silent` returns the addresses that have sent nothing yet.
    Writes the line `dashboard http://...` with the address to stderr; port 0 selects a free port. Raises the errors of
    `step`, BindError when the port cannot be bound, and MissingExtra without bokeh.
    """
    require_extra("bokeh", "web", "--web")
    from tornado.ioloop import IOLoop, PeriodicCallback

    from .page import Page

    def open_page(document: Document) -> None:
        Page(document, histories, lookups, silent)

    with _server(open_page, host, port) as (server, bound):
        sys.stderr.write(f"dashboard http://{host}:{bound}/\n")
        sys.stderr.flush()
        failures: list[GlovewireError] = []

        def tick() -> None:
            try:
                step(0.0)
                for lookup in lookups:
                    lookup.step()
            except GlovewireError as error:
                failures.append(error)
            if failures or stopped():
                IOLoop.current().stop()

        ticking = PeriodicCallback(tick, STEP_MS)
        ticking.start()
        server.io_loop.start()
        ticking.stop()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _server(open_page: Callable[[Document], None], host: str, port: int) -> Iterator[tuple[Any, int]]:
    from bokeh.application import Application
    from bokeh.application.handlers.function import FunctionHandler
    from bokeh.server.server import BaseServer
    from bokeh.server.tornado import BokehTornado
    from bokeh.server.util import bind_sockets
    from bokeh.settings import settings
    from tornado.httpserver import HTTPServer
    from tornado.ioloop import IOLoop

    settings.resources = "server"
    for name in ("bokeh", "tornado.access"):
        logging.getLogger(name).setLevel(logging.ERROR)  # a browser that disconnects is not worth a line

    try:
        sockets, bound = bind_sockets(host, port)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
        raise BindError(f"cannot serve the dashboard on {host}:{port}: {why}") from error
    pages = BokehTornado(
        {"/": Application(FunctionHandler(open_page))},
        extra_websocket_origins=_origins(host, bound),
        keep_alive_milliseconds=KEEP_ALIVE_MS,
        unused_session_lifetime_milliseconds=FORGET_PAGE_MS,
    )
    http = HTTPServer(pages)
    http.add_sockets(sockets)
    server = BaseServer(IOLoop.current(), pages, http)
    server.start()
    try:
        yield server, bound
    finally:
        server.stop()


def _origins(host: str, port: int) -> list[str]:
    """Return the origins whose pages may open a websocket: this server, under every name of this host."""
    names = ["*"] if host in ("0.0.0.0", "::", "") else list(dict.fromkeys((host, "localhost", "127.0.0.1")))
    return [f"{name}:{port}" for name in names]
