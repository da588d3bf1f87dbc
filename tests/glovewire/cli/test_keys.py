"""`glovewire keys` makes what it is asked for; tests/common/transport/test_curve_keys.py has the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from glovewire.cli.main import program
from glovewire.common.roles import Role
from glovewire.common.transport import curve_keys as keys


def made(*words: str) -> dict[str, str]:
    """The roles of the clients that a command has made keys for."""
    result = CliRunner().invoke(program, ["keys", *words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, str] = json.loads(result.output.splitlines()[-1])["roles"]
    return found


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        ((), {"worker": "worker", "monitor": "monitor", "admin": "admin"}),
        (("--role", "monitor"), {"monitor": "monitor"}),
        (("--name", "anna", "--name", "bert"), {"anna": "worker", "bert": "worker"}),
        (("--name", "anna", "--role", "admin"), {"anna": "admin"}),
    ],
)
def test_clients_have_the_role_that_is_asked_for(tmp_path: Path, words: tuple[str, ...], roles: dict[str, str]) -> None:
    assert made(str(tmp_path / "new"), *words) == roles
    assert made(str(tmp_path / "k"), "--name", "other") == {"other": "worker"}
    assert made(str(tmp_path / "k"), "--add", *words) == roles
    for folder in ("new", "k"):
        allowed = keys.load_server_keys(tmp_path / folder).allowed
        for name, role in roles.items():
            known = keys.load_client_keys(tmp_path / folder / f"{name}.key", Role(role))
            assert allowed.client_of(known.pair.public.decode()) == (name, role)
