"""Keep one browser's open page up to date: read RunHistories into charts and panels, and send what has changed."""

import json
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import jinja2
from bokeh.embed.bundle import bundle_for_objs_and_resources
from bokeh.embed.elements import html_page_for_render_items
from bokeh.embed.util import RenderItem
from bokeh.models import CustomJS, InlineStyleSheet
from bokeh.models.widgets import Div, TextInput

from ..history.history import RunHistory
from . import neighbours_panel, panels
from .charts import Charts
from .neighbours import NeighbourLookup

TITLE = "Glovewire"
UPDATE_MS = 100
PANELS_EVERY = 5
WORKERS_EVERY = 20
MAX_WORD = 100
MAX_HEIGHT_PX = {"workers": 300, "shards": 300, "settings": 300, "neighbours": 380}
"""Largest height of some panels, which scroll beyond it, so that they fit beside the column of charts."""
OPTIONAL = ("settings", "staleness", "hot_rows")
"""Panels whose card is hidden while they are empty."""


class Page:
    """Shows one or more RunHistories in a Bokeh document and keeps the document current."""

    def __init__(
        self,
        document: Any,
        histories: list[RunHistory],
        lookups: Sequence[NeighbourLookup],
        silent: Callable[[], Sequence[str]],
    ) -> None:
        self._histories, self._lookups, self._silent = histories, lookups, silent
        self._word, self._ticks = "", 0
        self._style = InlineStyleSheet(css=_file("panels.css"))
        self._charts = Charts(histories)
        self._query = TextInput(value="", name="query")
        self._about = TextInput(value="", name="about")
        """What page.js needs to know, as JSON; not a Div, which would show names from the network as markup."""
        self._query.on_change("value", self._look_up)
        # A recorded run contains only losses, so its page shows no shards.
        self._live = len(histories) == 1 and not (histories[0].finished and not histories[0].shards)
        self._panels = {name: self._panel(name) for name in self._markup(time.monotonic())}
        self.update()
        self._document = document
        self._fill(document)

    def text(self, resources: Any, token: str, nonce: str) -> str:
        """Return the HTML that shows any document of a Page with the same histories, in a session with `token`.

        BokehJS finds the place of each root by its position in the document, so all documents share one text.
        """
        roots = self._document.roots
        html: str = html_page_for_render_items(
            bundle_for_objs_and_resources(roots, resources),
            {},
            [RenderItem(token=token, roots=roots, use_for_title=True)],
            TITLE,
            jinja2.Template(_file("page.html")),
            {"compare": len(self._histories) > 1, "live": self._live},
        )
        return html.replace("<script", f'<script nonce="{nonce}"')

    def update(self) -> None:
        """Send the charts and panels that have changed since the last call to the browser."""
        for run in self._charts.runs:
            run.update(workers=self._ticks % WORKERS_EVERY == 0)
        if self._ticks % PANELS_EVERY == 0:
            for name, markup in self._markup(time.monotonic()).items():
                if self._panels[name].text != markup:
                    self._panels[name].text = markup
            if self._about.value != (about := self._described()):
                self._about.value = about
        self._ticks += 1

    def _described(self) -> str:
        """Return the title of the page, and whether dense models are shown, as JSON."""
        names = [history.title for history in self._histories]
        title = names[0] if len(names) == 1 else f"{len(names)} runs"
        return json.dumps({"title": title, "dense": all(history.is_dense for history in self._histories)})

    def _look_up(self, _: str, __: str, query: str) -> None:
        """Set the word to look up and refresh the vectors; `query` is `NUMBER WORD`, so that no two are equal."""
        self._word = query.partition(" ")[2][:MAX_WORD]
        for lookup in self._lookups:
            lookup.refresh(time.monotonic(), self._word)

    def _markup(self, now: float) -> dict[str, str]:
        first = self._histories[0]
        if len(self._histories) > 1:
            colours = [run.colour for run in self._charts.runs]
            return {
                "workers": panels.comparison(self._histories, colours),
                "status": f"<div class=status><b class=run>{len(self._histories)} runs compared</b></div>",
                "tiles": "",
                "settings": panels.compared_settings(self._histories, colours),
                "neighbours": neighbours_panel.compared_neighbours(self._word, self._histories, self._lookups, colours),
            }
        lookup = self._lookups[0]
        markup = {
            "status": panels.status(first, now, self._silent()),
            "tiles": panels.tiles(first),
            "workers": panels.workers(first, now),
            "neighbours": neighbours_panel.neighbours(self._word, lookup, now, finished=first.finished),
            "settings": panels.settings(first),
        }
        if self._live:
            markup |= {
                "shards": panels.shards(first),
                "events": panels.events(first),
                "staleness": panels.staleness(first),
                "hot_rows": panels.hot_rows(first, lookup.vectors),
            }
        return markup

    def _panel(self, name: str) -> Any:
        panel = Div(name=name, text="", disable_math=True, stylesheets=[self._style], sizing_mode="stretch_width")
        if name in MAX_HEIGHT_PX:
            panel.styles = {"overflow": "auto", "max-height": f"{MAX_HEIGHT_PX[name]}px"}
        return panel

    def _fill(self, document: Any) -> None:
        document.title = TITLE
        charts = self._charts
        with document.models.freeze():  # otherwise Bokeh collects all models again after every root
            for root in (*self._panels.values(), charts.by_time, charts.by_done, charts.rate, self._query, self._about):
                document.add_root(root)
        optional = {name: self._panels[name] for name in OPTIONAL if name in self._panels}
        models = {"query": self._query, "about": self._about, "optional": optional}
        document.js_on_event("document_ready", CustomJS(args={**charts.themed, **models}, code=_file("page.js")))
        toggle = 'document.getElementById("disconnected").classList.toggle("shown", %s)'
        document.js_on_event("connection_lost", CustomJS(code=toggle % "true"))
        document.js_on_event("client_reconnected", CustomJS(code=toggle % "false"))
        document.add_periodic_callback(self.update, UPDATE_MS)


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
