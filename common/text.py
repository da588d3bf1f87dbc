"""Format numbers for people, and escape text of peers and files that may not be safe to print. No I/O."""

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


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


def amount(value: float, unit: str = "") -> str:
    """Return `value` with three digits and a prefix, such as `1.23 M`; with a unit, `1.23 MB`."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{_three_digits(value / size)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}".rstrip()


def _three_digits(value: float) -> str:
    size = abs(value)
    if value == int(value) and size < 1_000:
        return str(int(value))
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"
