"""Signals as errors: once, also in a block within a block, and afterwards as before."""

from __future__ import annotations

import signal

import pytest

from launch.interrupts import SIGNALS, Interrupted, signals_raise


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
