"""The table of roles in docs/security.md says what the code checks."""

from __future__ import annotations

import re

from source import ROOT

from glovewire.common.roles import Role
from glovewire.server.core import rights

ROW = re.compile(
    r"^\| (?P<action>[^|`]+) \(`(?P<message>\w+)`\) \| (?P<may>(?:(?:yes|no)(?: \| )?){3}) \|$", re.MULTILINE
)


def test_the_table_of_roles_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert f"| | {' | '.join(Role)} |" in page
    written = {
        (row["message"], row["action"]): dict(zip(Role, row["may"].split(" | "), strict=True))
        for row in ROW.finditer(page)
    }
    known = [(kind.__name__, right) for kind, right in rights.RIGHTS.items()]
    known += [("Hello", rights.JOIN), ("Create", rights.ATTACH)]
    assert written == {
        (message, right.action): {role: "yes" if role in right.roles else "no" for role in Role}
        for message, right in known
    }
