"""`glovewire keys` makes what it is asked for; tests/common/transport/test_curve_keys.py has the files themselves."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from glovewire.cli.main import program
from glovewire.common.errors import KeyFileError
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


def test_the_command_that_an_error_names_mends_a_list_without_roles(tmp_path: Path) -> None:
    folder = tmp_path / "my keys"
    made(str(folder), "--name", "anna")
    public = keys.load_client_keys(folder, Role.WORKER).pair.public.decode()
    (folder / "allowed.toml").write_text(f'anna = "{public}"\n')
    with pytest.raises(KeyFileError) as told:
        keys.load_server_keys(folder)
    words = shlex.split(str(told.value).split("`")[1])
    assert words[:2] == ["glovewire", "keys"]
    assert made(*words[2:]) == {"anna": "worker"}
    assert keys.load_server_keys(folder).allowed.client_of(public) == ("anna", "worker")
