"""Signals as errors: once, also in a block within a block, and afterwards as before."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from processes import DEADLINE_S

from glovewire.common.errors import Interrupted
from glovewire.common.runtime.signals import AGAIN_S, SIGNALS, Signalled, ends_soon, signals_exit, signals_raise


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


def test_a_block_within_another_handler_raises_and_gives_it_back() -> None:
    def others(*_: object) -> None:
        pass

    with signals_raise():
        ours = signal.signal(signal.SIGTERM, others)
        with pytest.raises(Interrupted), signals_raise():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is others
        signal.signal(signal.SIGTERM, ours)


def in_a_finaliser() -> None:
    class Swallows:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    Swallows()


def in_code_in_c() -> None:
    """C code that prints an exception by PyErr_Print() and continues, as Cython's does."""
    ctypes.pythonapi.PyRun_SimpleString(b"import signal; signal.raise_signal(signal.SIGTERM)")


@pytest.mark.parametrize("lose", [in_a_finaliser, in_code_in_c])
def test_what_is_lost_is_raised_again_in_silence(lose: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    heard = []

    @signals_raise()
    def interrupted() -> None:
        lose()
        heard.append("nothing")
        threading.Event().wait(30)

    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        interrupted()
    assert heard == ["nothing"]
    assert capsys.readouterr().err == ""


def in_a_new_class() -> None:
    """Python makes a RuntimeError of what is raised here."""

    class Attribute:
        def __set_name__(self, *_: object) -> None:
            signal.raise_signal(signal.SIGTERM)

    type("Made", (), {"attribute": Attribute()})


def in_an_import_in_c() -> None:
    """Such an import forgets what went wrong and says that it failed."""
    with contextlib.suppress(Signalled):
        signal.raise_signal(signal.SIGTERM)
    raise ImportError


@pytest.mark.parametrize("interrupted", [in_a_new_class, in_an_import_in_c])
def test_what_others_make_of_it_is_still_an_interruption(interrupted: Callable[[], None]) -> None:
    with pytest.raises(Interrupted, match="interrupted by SIGTERM; so"):
        signals_raise("; so")(interrupted)()


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


LOST = """
import signal, sys
from glovewire.common.runtime.signals import signals_exit

class Swallows:
    def __del__(self):
        signal.raise_signal(int(sys.argv[1]))

signal.signal(signal.SIGTERM, lambda *_: sys.exit("raised"))  # as for the first process of a container
with signals_exit():
    Swallows()
print("went on")
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_where_errors_are_lost_a_signal_ends_the_process(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LOST, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    assert ended.stderr == f"error: interrupted by {number.name}\n"


FORKED = """
import os, signal
from glovewire.common.runtime.signals import signals_raise
try:
    with signals_raise():
        child = os.fork()
        if not child:
            signal.raise_signal(signal.SIGTERM)
        print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
finally:
    print("what the parent does at its end", flush=True)
"""


def test_a_process_that_was_just_forked_does_not_do_what_its_parent_does() -> None:
    """Seen to fail, here and in a pool whose first process had died: it raised in its copy of the parent's stack."""
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == f"ended with {128 + signal.SIGTERM}\nwhat the parent does at its end\n"


def test_what_ignores_signals_or_handles_them_does_so_afterwards() -> None:
    before = [signal.signal(signal.SIGINT, signal.SIG_IGN), signal.signal(signal.SIGTERM, signal.SIG_DFL)]
    try:
        with signals_exit():
            assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN, signal.SIG_DFL]
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, was in zip(SIGNALS, before, strict=True):
            signal.signal(number, was)
    with signals_exit():
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_loop_that_does_not_look_is_left_all_the_same() -> None:
    before = signal.getsignal(signal.SIGALRM)
    looks = iter([False, True])

    async def busy() -> None:
        def callback() -> None:
            while True:
                pass

        asyncio.get_running_loop().call_soon(callback)
        await asyncio.Event().wait()

    with ends_soon(lambda: next(looks), 0.01):
        asyncio.run(busy())
    assert next(looks, None) is None
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
