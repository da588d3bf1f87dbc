"""Make text for people: of losses, and of what a peer or a file says, which may not be safe to print. No I/O."""


def printable(text: str, most: int | None = None) -> str:
    """Escape what is not printable (control and bidirectional characters, lone surrogates); cut to `most` characters.

    The result is one line, has no character that moves a terminal's cursor, and can be encoded as UTF-8.
    """
    if text.isprintable():
        return text[:most]
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:most])[:most]


def shown_loss(value: float) -> str:
    """Return a loss with four decimals, so that its width on the screen stays the same while the loss falls."""
    if value and abs(value) < 1e-3:
        return f"{value:.3e}"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"
