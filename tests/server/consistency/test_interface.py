"""Which consistency mode the options ask for."""

from __future__ import annotations

import numpy as np

from glovewire.common.model.options import TrainingOptions
from glovewire.server.consistency.blocks import AsynchronousBlocks, ExclusiveBlocks
from glovewire.server.consistency.interface import BEGINNING, Reached, make_consistency
from glovewire.server.consistency.minibatch import Asynchronous, SoftSynchronous, StaleSynchronous, Synchronous

BOUNDS = np.array([0, 8, 16, 25])


def test_the_options_choose_the_mode() -> None:
    assert isinstance(make_consistency(TrainingOptions(), BOUNDS, BEGINNING), ExclusiveBlocks)
    assert type(make_consistency(TrainingOptions(consistency="async"), BOUNDS, BEGINNING)) is AsynchronousBlocks
    kinds = {"async": Asynchronous, "sync": Synchronous, "ssp:2": StaleSynchronous, "softsync:3": SoftSynchronous}
    for text, kind in kinds.items():
        options = TrainingOptions(schedule="minibatch", consistency=text)
        mode = make_consistency(options, BOUNDS, Reached(updates=5, gradients=9), workers=4)
        assert (type(mode), mode.version(0), mode.gradients) == (kind, 5, 9)
        assert mode.missing == (0 if text == "async" else 4)
