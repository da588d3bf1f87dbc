"""Signals as errors: once, also in a block within a block, and afterwards as before."""

from __future__ import annotations

import signal
import threading

import pytest

from common.errors import Interrupted
from common.interrupts import AGAIN_S, SIGNALS, signals_raise


@pytest.mark.parametrize("number", SIGNALS)
def test_after_the_inner_of_two_blocks_no_second_signal_comes_through(number: signal.Signals) -> None:
    before, heard = [signal.getsignal(each) for each in SIGNALS], []

    @signals_raise()
    def outer() -> None:
        try:
            with signals_raise():
                signal.raise_signal(number)
        finally:
            for each in SIGNALS:
                signal.raise_signal(each)
                heard.append(each)  # the outer block's way out goes on

    with pytest.raises(Interrupted, match=f"interrupted by {number.name}"):
        outer()
    assert heard == list(SIGNALS)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_block_within_somebody_elses_handler_raises_and_gives_it_back() -> None:
    def others(*_: object) -> None:
        pass

    with signals_raise():
        ours = signal.signal(signal.SIGTERM, others)
        with pytest.raises(Interrupted), signals_raise():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is others
        signal.signal(signal.SIGTERM, ours)


def test_what_is_lost_in_a_finaliser_is_raised_again_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    heard = []

    @signals_raise()
    def interrupted() -> None:
        Swallows()
        heard.append("nothing")
        threading.Event().wait(30)

    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        interrupted()
    assert heard == ["nothing"]
    assert capsys.readouterr().err == ""


def test_what_another_error_was_made_of_is_still_an_interruption() -> None:
    class Attribute:
        def __set_name__(self, *_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    @signals_raise()
    def interrupted() -> None:
        type("Made", (), {"attribute": Attribute()})

    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        interrupted()


def test_nothing_is_raised_again_on_the_way_out() -> None:
    waited = []

    @signals_raise()
    def interrupted() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            waited.append(threading.Event().wait(2 * AGAIN_S))
            try:
                raise ValueError
            except ValueError:
                waited.append(threading.Event().wait(2 * AGAIN_S))

    with pytest.raises(Interrupted):
        interrupted()
    assert waited == [False, False]
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0
