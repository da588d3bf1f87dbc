"""Which Python an environment is made with: the first that suits, a much faster one behind it, or one that was named.

The Pythons are this one, told to say something else about itself: its version, where it lives, how fast time goes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from source import ROOT

FAKE = """#!/bin/sh
echo "$1" >> '{calls}'
[ "$1" = -c ] || exit 0
exec '{python}' -IS -c 'import itertools, sys, time
sys.base_prefix = "{home}"
{changes}
exec(sys.argv[1])' "$2"
"""

OLD = 'sys.version_info, sys.version = (3, 10, 9), "3.10.9 (main)"'
WITHOUT_VENV = 'sys.modules["ensurepip"] = None'
OTHER_KIND = 'sys.implementation.name = "pypy"'
BROKEN = "sys.exit(127)"
SLOW = "sys.setprofile(lambda *event: None)"

Install = Callable[..., Path]


def taking(milliseconds: float) -> str:
    """Every look at the clock is so much later than the one before; what happens between them does not matter."""
    clock = f"ticks = itertools.count()\ntime.process_time = lambda: next(ticks) * {milliseconds} / 1000"
    return f"{clock}\nnumbers, range = range, lambda count: numbers(min(count, 10))"


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Puts a python3 into a folder of that name."""

    def put(name: str, changes: str = "", home: str = "") -> Path:
        path = tmp_path / name / "python3"
        path.parent.mkdir()
        calls = path.parent / "calls"
        text = FAKE.format(calls=calls, python=sys.executable, home=home or path.parent, changes=changes)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    return put


def choose(*pythons: Path, named: str = "") -> subprocess.CompletedProcess[str]:
    """Asks with the folders of these on PATH, in this order."""
    command = ["/bin/sh", str(ROOT / "which-python.sh"), *([named] if named else [])]
    path = ":".join(str(python.parent) for python in pythons)
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=60)


def calls(python: Path) -> list[str]:
    return (python.parent / "calls").read_text(encoding="utf-8").split()


def test_the_only_one_is_taken_without_a_word_and_without_measuring(install: Install) -> None:
    only = install("only")
    done = choose(only)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{only}\n", "")
    assert calls(only) == ["-c"]


@pytest.mark.parametrize(("milliseconds", "is_taken"), [(0.83, True), (0.84, False), (2, False)])
def test_one_behind_is_taken_where_it_is_much_faster(install: Install, milliseconds: float, is_taken: bool) -> None:
    first, behind = install("first", taking(1)), install("behind", taking(milliseconds))
    done = choose(first, behind)
    assert done.stdout == f"{behind if is_taken else first}\n"
    assert bool(done.stderr) == is_taken


def test_why_one_behind_is_taken_is_one_plain_line(install: Install) -> None:
    first, behind = install("first", taking(1.65)), install("behind", taking(1))
    version = sys.version.split()[0]
    assert choose(first, behind).stderr == (
        f"== environment: {behind} ({version}) runs Python 1.6 times as fast as {first} ({version}), "
        "the first on PATH that suits; make PYTHON=... takes another\n"
    )


def test_the_fastest_is_taken_and_among_equals_the_one_before(install: Install) -> None:
    pythons = [install(f"{place}", taking(time)) for place, time in enumerate([3, 2, 1, 1])]
    assert choose(*pythons).stdout == f"{pythons[2]}\n"


def test_the_speed_is_really_measured(install: Install) -> None:
    slow, fast = install("slow", SLOW), install("fast")
    assert choose(slow, fast).stdout == f"{fast}\n"
    assert choose(fast, slow).stdout == f"{fast}\n"


def test_two_paths_to_one_python_are_one(install: Install) -> None:
    first, again = install("first", taking(1)), install("again", taking(0.1), home="/usr")
    same = install("same", taking(0.1), home=str(first.parent))
    assert choose(first, same).stdout == f"{first}\n"
    assert calls(same) == ["-c"], "measured though it is the first"
    assert choose(first, same, again).stdout == f"{again}\n"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (OLD, "is Python 3.10.9 (3.11 or newer is needed)"),
        (WITHOUT_VENV, "lacks the venv module (on Debian and Ubuntu: apt-get install python3-venv)"),
        (OTHER_KIND, "is pypy (CPython is needed)"),
        (BROKEN, "does not run"),
    ],
    ids=["old", "without venv", "other kind", "broken"],
)
def test_what_does_not_suit_is_passed_over_and_an_error_where_there_is_no_other(
    install: Install, changes: str, why: str
) -> None:
    bad, good = install("bad", changes), install("good")
    done = choose(bad, good)
    assert done.stdout == f"{good}\n"
    assert done.stderr == f"== environment: {good} ({sys.version.split()[0]}), as {bad} {why}\n"
    behind = choose(good, bad)
    assert (behind.stdout, behind.stderr) == (f"{good}\n", "")
    for alone in choose(bad), choose(good, named=str(bad)):
        assert (alone.returncode, alone.stdout) == (1, "")
        assert alone.stderr == f"error: {bad} {why}; make PYTHON=... takes another\n"


def test_everything_that_does_not_suit_is_named(install: Install) -> None:
    old, bare = install("old", OLD), install("bare", WITHOUT_VENV)
    error = choose(old, bare).stderr
    assert str(old) in error
    assert f"{bare} lacks" in error


@pytest.mark.parametrize(("named", "missing"), [("", "python3"), ("python4", "python4")])
def test_none_at_all_is_an_error(tmp_path: Path, named: str, missing: str) -> None:
    done = choose(tmp_path / "python3", named=named)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: no {missing} found; install Python 3.11 or newer\n"


def test_a_named_one_is_taken_as_it_is(install: Install) -> None:
    slow, fast = install("slow", taking(2)), install("fast", taking(1))
    done = choose(fast, slow, named=str(slow))
    assert (done.stdout, done.stderr) == (f"{slow}\n", "")
    assert calls(slow) == ["-c"]
    assert choose(fast, named="python3").stdout == "python3\n"


# ---- make


def make(folder: Path, first: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`make .venv/made` in a folder that has what it needs, without what a `make test` around us hands down."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    for name in "Makefile", "which-python.sh":
        shutil.copy(ROOT / name, folder)
    (folder / ".venv").mkdir(exist_ok=True)
    return subprocess.run(
        ["make", ".venv/made", *words],
        cwd=folder,
        env={"PATH": f"{first.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def made_an_environment(python: Path) -> bool:
    return calls(python)[-1] == "-m"


def test_make_takes_the_one_that_was_found_or_the_one_that_was_named(install: Install, tmp_path: Path) -> None:
    first, other = install("first", taking(0.001)), install("other", taking(1))
    assert make(tmp_path, first).returncode == 0
    assert made_an_environment(first)
    (tmp_path / ".venv" / "made").unlink()
    done = make(tmp_path, first, f"PYTHON={other}")
    assert done.returncode == 0, done.stderr
    assert made_an_environment(other)


def test_make_completes_an_environment_with_the_python_that_it_has(install: Install, tmp_path: Path) -> None:
    slow, fast = install("slow", taking(1)), install("fast", taking(0.001))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(slow)
    assert make(tmp_path, fast).returncode == 0
    assert made_an_environment(slow)


def test_make_stops_where_nothing_suits(install: Install, tmp_path: Path) -> None:
    done = make(tmp_path, install("old", OLD), f"PYTHON={tmp_path / 'old' / 'python3'}")
    assert done.returncode != 0
    assert "error:" in done.stderr
    assert not (tmp_path / ".venv" / "made").exists()
