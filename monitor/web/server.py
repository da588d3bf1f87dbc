"""Serve the browser dashboard: Bokeh's own server, in the caller's thread, with every resource from this machine.

Every browser tab that opens its websocket gets its own `page.Page`. The event loop calls `step` between the browsers'
requests, so that one thread is enough. No page requests anything from another host.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from glovewire.common.errors import BindError, GlovewireError, require_extra
from glovewire.common.runtime.signals import ends_soon

from ..history.history import RunHistory
from .neighbours import NeighbourLookup

if TYPE_CHECKING:
    from bokeh.document import Document
    from bokeh.server.server import BaseServer

    from .page import Page

STEP_MS = 50
END_S = 0.5


def serve(
    histories: list[RunHistory],
    host: str,
    port: int,
    *,
    lookups: Sequence[NeighbourLookup],
    step: Callable[[float], None] = lambda _: None,
    silent: Callable[[], Sequence[str]] = tuple,
    stopped: Callable[[], bool],
    names: Sequence[str] = (),
) -> None:
    """Serve `histories` at http://host:port/ until `stopped`, calling `step(0.0)` every STEP_MS.

    `lookups` find nearest words, one object per history; `silent` returns the addresses that have sent nothing yet.
    Requests for a host name that is neither this machine's nor one of `names` are refused.
    Writes the line `dashboard http://...` with the address to stderr; port 0 selects a free port. Raises the errors of
    `step`, BindError when the port cannot be bound, and MissingExtra without bokeh.
    """
    require_extra("bokeh", "web", "--web")
    from tornado.ioloop import IOLoop, PeriodicCallback

    from .page import Page

    def open_page(document: Document) -> Page:
        return Page(document, histories, lookups, silent)

    with _server(open_page, host, port, names) as (server, bound):
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
        with ends_soon(stopped, END_S):
            server.io_loop.start()
        ticking.stop()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _server(
    open_page: Callable[[Document], Page], host: str, port: int, names: Sequence[str]
) -> Iterator[tuple[BaseServer, int]]:
    from bokeh.server.server import BaseServer
    from bokeh.server.util import bind_sockets
    from bokeh.settings import settings
    from tornado.ioloop import IOLoop

    from . import handlers

    settings.resources = "server"
    for name in ("bokeh", "tornado.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # a browser's mistakes are not worth logging

    app = handlers.application(open_page, [host, *names])
    try:
        sockets, bound = bind_sockets(host, port)
    except OSError as error:
        why = "the port is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
        raise BindError(f"cannot serve the dashboard on {host}:{port}: {why}") from error
    http = handlers.PageServer(
        app,
        idle_connection_timeout=handlers.IDLE_S,
        body_timeout=handlers.IDLE_S,
        max_body_size=handlers.MAX_MESSAGE_BYTES,
    )
    http.add_sockets(sockets)
    server = BaseServer(IOLoop.current(), app, http)
    server.start()
    try:
        yield server, bound
    finally:
        server.stop()
        gc.freeze()  # collecting many documents would take the interpreter seconds at exit
