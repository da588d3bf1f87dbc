"""Make text from a peer or a file safe to send, log and print. No I/O."""


def printable(text: str, most: int | None = None) -> str:
    """Escape what is not printable (control and bidirectional characters, lone surrogates); cut to `most` characters.

    The result is one line, has no character that moves a terminal's cursor, and can be encoded as UTF-8.
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:most])[:most]
