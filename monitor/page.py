"""One browser's page: its figures and panels, kept up to date while it is open. Only what has changed is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from . import panels
from .charts import Charts
from .history import History

UPDATE_MS = 150
PANELS_EVERY = 3
WORKERS_EVERY = 13
SCROLLED = ("workers", "shards", "events")
Silent = Callable[[], Sequence[str]]


class Page:
    """Puts one or more Histories into a Bokeh document and keeps them current there."""

    def __init__(self, document: Any, histories: list[History], silent: Silent) -> None:
        from bokeh.models import InlineStyleSheet
        from bokeh.models.widgets import Slider

        self._histories = histories
        self._silent = silent
        self._ticks = 0
        self._style = InlineStyleSheet(css=_file("panels.css"))
        self._charts = Charts(histories)
        self._smoothing = Slider(start=0, end=1, step=0.25, value=1, name="smoothing")
        self._panels = {name: self._panel(name) for name in ("status", "tiles", "workers", "shards", "events")}
        self.update()
        self._fill(document)

    def update(self) -> None:
        """Send what has changed since the last time."""
        self._charts.update(float(self._smoothing.value), workers=self._ticks % WORKERS_EVERY == 0)
        if self._ticks % PANELS_EVERY == 0:
            for name, words in self._words(time.monotonic()).items():
                if self._panels[name].text != words:
                    self._panels[name].text = words
        self._ticks += 1

    def _words(self, now: float) -> dict[str, str]:
        first = self._histories[0]
        if len(self._histories) > 1:
            colours = [run.colour for run in self._charts.runs]
            words = {"workers": panels.comparison(self._histories, colours)}
            return {**words, "status": panels.compared(len(self._histories))}
        return {
            "status": panels.status(first, now, self._silent()),
            "tiles": panels.tiles(first),
            "workers": panels.workers(first, now),
            "shards": panels.shards(first),
            "events": panels.events(first),
        }

    def _panel(self, name: str) -> Any:
        from bokeh.models.widgets import Div

        panel = Div(name=name, text="", disable_math=True, stylesheets=[self._style], sizing_mode="stretch_width")
        if name in SCROLLED:
            panel.styles = {"overflow": "auto", "max-height": "300px"}
        return panel

    def _fill(self, document: Any) -> None:
        import jinja2

        document.template = jinja2.Template(_file("page.html"))
        document.template_variables["compare"] = len(self._histories) > 1
        document.title = "Glovewire"
        charts = self._charts
        for root in (*self._panels.values(), charts.by_time, charts.by_entries, charts.pace, self._smoothing):
            document.add_root(root)
        document.js_on_event(
            "document_ready", self._script("page.js", **vars(charts.painted), smoothing=self._smoothing)
        )
        cut = 'document.getElementById("cut").classList.toggle("shown", %s)'
        document.js_on_event("connection_lost", self._script(None, cut % "true"))
        document.js_on_event("client_reconnected", self._script(None, cut % "false"))
        document.add_periodic_callback(self.update, UPDATE_MS)

    def _script(self, name: str | None, code: str = "", **models: Any) -> Any:
        from bokeh.models import CustomJS

        return CustomJS(args=models, code=code if name is None else _file(name))


def _file(name: str) -> str:
    return files("monitor").joinpath(name).read_text(encoding="utf-8")
