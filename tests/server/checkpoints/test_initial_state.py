"""What a run begins with when it continues from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from shards import MINIBATCH, in_memory, push, report, shard

from glovewire.common.protocol import messages as m
from glovewire.server.checkpoints import files, initial_state


def test_false_reports_do_not_complete_a_run_that_is_resumed(tmp_path: Path) -> None:
    """Seen to fail: entries as reported counted as trained, so that a resumed run was complete at once."""
    one = shard(in_memory(tmp_path / "d"), batch_size=8, **MINIBATCH)
    one.hello("w0")
    width = one.state.table.parameters
    gradient = push("gradient", np.zeros((1, width)), rows=[0], sequence=1, version=0, rate=0.1)
    assert isinstance(one.ask(b"w0", gradient), m.Applied)
    for sequence in range(1, 4):
        assert isinstance(one.ask(b"w0", report(sequence, entries=one.state.progress.max_entries)), m.Recorded)
    one.ask(b"w0", m.Checkpoint(1))
    (snapshot,) = one.take_snapshots()
    files.write(tmp_path, snapshot)
    rows = one.dataset.layout.rows
    found = initial_state.restore_state(tmp_path, snapshot.label, 1, one.state.options, one.dataset, 0, rows)
    assert found.reached.gradients == 1
    assert found.entries == 8
