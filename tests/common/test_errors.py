"""Every fault has one name on the wire and comes back from it as itself."""

from __future__ import annotations

import inspect

import pytest

from glovewire.common import errors
from glovewire.common.endings import Ending, RunEnd
from glovewire.common.errors import BadRequest, GlovewireError, ProtocolError, RunOver, from_wire, leaves, parse_ending

OURS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, GlovewireError)]


def test_codes_are_unique_and_none_is_inherited() -> None:
    assert len({kind.code for kind in OURS}) == len(OURS)
    assert all("code" in vars(kind) for kind in OURS)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_from_the_wire_as_itself(kind: type[GlovewireError]) -> None:
    error = from_wire(kind.code, "what happened")
    assert type(error) is kind
    assert str(error) == "what happened"
    assert error.exit_status in (1, 2)
    assert leaves()[kind.code] is kind


def test_why_a_run_is_over_crosses_the_wire_with_it() -> None:
    for ending in Ending:
        error = from_wire(RunOver.code, "the loss became nan", ending.value)
        assert isinstance(error, RunOver)
        assert error.ending is ending
        assert error.end == (ending, "the loss became nan" if ending is Ending.FAILED else "")
    assert str(RunOver(Ending.ASKED)) == "the run is over (asked)"
    for unknown in ("", "gone"):
        assert getattr(from_wire(RunOver.code, "x", unknown), "ending", None) is Ending.OVER


def test_an_ending_is_parsed_or_refused() -> None:
    end = parse_ending("failed", "x" * 300)
    assert end == RunEnd(Ending.FAILED, "x" * 200)
    assert (str(RunEnd(Ending.ASKED)), str(RunEnd(Ending.FAILED, "nan"))) == ("asked", "failed: nan")
    assert RunEnd(Ending.ASKED).as_fields() == {"ending": "asked"}
    assert RunEnd(Ending.FAILED, "nan").as_fields() == {"ending": "failed", "ending_text": "nan"}
    for wrong in ("", "Failed", "failed: the loss became nan"):
        with pytest.raises(BadRequest, match="an ending is one of complete, asked"):
            parse_ending(wrong, "")


def test_an_unknown_code_is_still_an_error() -> None:
    assert type(from_wire("from-the-future", "x")) is GlovewireError


def test_wrong_usage_ends_with_two_and_everything_else_with_one() -> None:
    assert {kind.__name__ for kind in OURS if kind.exit_status == 2} == {"UsageError"}


def test_every_kind_of_bad_frame_is_a_protocol_error() -> None:
    assert {kind.__name__ for kind in OURS if issubclass(kind, ProtocolError)} == {
        "ProtocolError", "VersionMismatch", "LimitExceeded",
    }  # fmt: skip
