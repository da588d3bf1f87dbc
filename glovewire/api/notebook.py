"""Show progress in a Jupyter notebook, as one line with a bar that is updated in place. Elsewhere nothing is shown."""

import html
import sys
import time
from typing import Any, Self

_EVERY_S = 0.25
_WIDTH = 24


class Bar:
    """Context manager that shows progress in a notebook while its block lasts, unless `progress` is False.

    The last state remains. `on_stderr` asks a command for progress there instead (no notebook, `progress` is True).
    """

    def __init__(self, title: str, progress: bool | None) -> None:
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        in_notebook = getattr(shell, "kernel", None) is not None
        self._title, self._shown = title, in_notebook and progress is not False
        self.on_stderr = progress is True and not self._shown
        self._handle: Any = None
        self._drawn = float("-inf")
        self._state = (0.0, "")

    def __enter__(self) -> Self:
        if self._shown:
            from IPython.display import display

            self._handle = display(self._content(), raw=True, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._draw()

    def update(self, fraction: float, text: str) -> None:
        """Show that `fraction` (0 to 1) is done, followed by `text`; redraws at most four times a second."""
        self._state = fraction, text
        if time.monotonic() - self._drawn > _EVERY_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is not None:
            self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        fraction, text = self._state
        filled = round(_WIDTH * min(max(fraction, 0.0), 1.0))
        plain = f"{self._title} [{'█' * filled}{'·' * (_WIDTH - filled)}] {text}"
        page = (
            f'<div style="font-family:monospace">{html.escape(self._title)} '
            f'<progress value="{fraction:.4f}" max="1" style="width:14em;vertical-align:middle"></progress> '
            f"{html.escape(text)}</div>"
        )
        return {"text/plain": plain, "text/html": page}
