"""A subscription yields plain dicts, ends with the run, and raises if the run fails or stays silent."""

from __future__ import annotations

import threading

import pytest
from monitor_fakes import Publisher, loss

import glovewire
from glovewire import errors
from glovewire.common.protocol.messages import Event


def publish(publisher: Publisher, last: str, stop: threading.Event) -> None:
    """Publish a loss and a last event again and again, for a subscriber that may come late."""
    while not stop.wait(0.02):
        publisher.publish(loss(entries=5))
        publisher.publish(Event(1.0, last, "shard 0", "why"))


@pytest.mark.parametrize("last", ["finished", "failed"])
def test_samples_come_until_the_end(last: str) -> None:
    stop, found = threading.Event(), []
    with Publisher() as publisher:
        thread = threading.Thread(target=publish, args=(publisher, last, stop))
        thread.start()
        try:
            samples = glovewire.subscribe(publisher.address, ["loss"], timeout_s=30)
            if last == "failed":
                with pytest.raises(errors.GlovewireError, match="why"):
                    found.extend(samples)
            else:
                found.extend(samples)
        finally:
            stop.set()
            thread.join()
        assert all((each["topic"], each["entries"]) == ("loss", 5) for each in found)
        assert all(each["address"] == publisher.address for each in found)


def test_silence_is_an_error() -> None:
    with Publisher() as publisher, pytest.raises(errors.DeadlineExceeded, match="no sample from"):
        next(glovewire.subscribe(publisher.address, timeout_s=0.3))
