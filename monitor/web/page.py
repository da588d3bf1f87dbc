"""One browser's page: its figures and panels, kept up to date while it is open. Only what has changed is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from ..history.history import History
from . import neighbours_panel as nearby
from . import panels
from .charts import Charts
from .neighbours import Lookup

UPDATE_MS = 100
PANELS_EVERY = 5
WORKERS_EVERY = 20
MAX_WORD = 100
SCROLLED = {"workers": 300, "shards": 300, "events": 480, "near": 300}
"""Panels that grow no further than so many pixels, beside the column of charts, and scroll from there."""
ALWAYS = ("status", "tiles", "workers", "near")
LIVE = (*ALWAYS, "shards", "staleness", "hottest", "events")
Silent = Callable[[], Sequence[str]]


class Page:
    """Puts one or more Histories into a Bokeh document and keeps them current there."""

    def __init__(self, document: Any, histories: list[History], lookups: Sequence[Lookup], silent: Silent) -> None:
        from bokeh.models import InlineStyleSheet
        from bokeh.models.widgets import TextInput

        self._histories, self._lookups = histories, lookups
        self._silent = silent
        self._word = ""
        self._ticks = 0
        self._style = InlineStyleSheet(css=_file("panels.css"))
        self._charts = Charts(histories)
        self._asked = TextInput(value="", name="asked")
        self._asked.on_change("value", self._ask)
        self._live = len(histories) == 1 and not (histories[0].finished and not histories[0].shards)
        self._panels = {name: self._panel(name) for name in (LIVE if self._live else ALWAYS)}
        self.update()
        self._fill(document)

    def update(self) -> None:
        """Send what has changed since the last time."""
        self._charts.update(workers=self._ticks % WORKERS_EVERY == 0)
        if self._ticks % PANELS_EVERY == 0:
            for name, words in self._words(time.monotonic()).items():
                if self._panels[name].text != words:
                    self._panels[name].text = words
        self._ticks += 1

    def _ask(self, _: str, __: str, said: str) -> None:
        """Somebody asks for the neighbours of a word; the page numbers the questions."""
        self._word = said.partition(" ")[2][:MAX_WORD]
        for lookup in self._lookups:
            lookup.want(time.monotonic())

    def _words(self, now: float) -> dict[str, str]:
        first = self._histories[0]
        if len(self._histories) > 1:
            colours = [run.colour for run in self._charts.runs]
            return {
                "workers": panels.comparison(self._histories, colours),
                "status": panels.compared(len(self._histories)),
                "near": nearby.compared(self._word, self._histories, self._lookups, colours),
            }
        lookup = self._lookups[0] if self._lookups else None
        words = {
            "status": panels.status(first, now, self._silent()),
            "tiles": panels.tiles(first),
            "workers": panels.workers(first, now),
            "near": nearby.near(self._word, lookup, now, over=first.finished),
        }
        if not self._live:  # losses alone are on record: nothing more is known
            return words
        return words | {
            "shards": panels.shards(first),
            "events": panels.events(first),
            "staleness": nearby.staleness(first),
            "hottest": nearby.hottest(first, lookup),
        }

    def _panel(self, name: str) -> Any:
        from bokeh.models.widgets import Div

        panel = Div(name=name, text="", disable_math=True, stylesheets=[self._style], sizing_mode="stretch_width")
        if name in SCROLLED:
            panel.styles = {"overflow": "auto", "max-height": f"{SCROLLED[name]}px"}
        return panel

    def _fill(self, document: Any) -> None:
        import jinja2

        document.template = jinja2.Template(_file("page.html"))
        document.template_variables.update(compare=len(self._histories) > 1, live=self._live)
        document.title = "Glovewire"
        charts = self._charts
        for root in (*self._panels.values(), charts.by_time, charts.by_entries, charts.pace, self._asked):
            document.add_root(root)
        document.js_on_event("document_ready", self._script("page.js", **vars(charts.painted), asked=self._asked))
        cut = 'document.getElementById("cut").classList.toggle("shown", %s)'
        document.js_on_event("connection_lost", self._script(None, cut % "true"))
        document.js_on_event("client_reconnected", self._script(None, cut % "false"))
        document.add_periodic_callback(self.update, UPDATE_MS)

    def _script(self, name: str | None, code: str = "", **models: Any) -> Any:
        from bokeh.models import CustomJS

        return CustomJS(args=models, code=code if name is None else _file(name))


def _file(name: str) -> str:
    return files("monitor").joinpath(name).read_text(encoding="utf-8")
