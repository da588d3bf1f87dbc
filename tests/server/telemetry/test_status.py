"""Queries that need no session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from shards import code, in_memory, shard

from glovewire.common.protocol import messages as m


def test_any_client_may_ask_what_rows_stand_for(tmp_path: Path) -> None:
    one = shard(in_memory(tmp_path / "d"), number=1, shards=2)
    table, dataset = one.state.table, one.dataset
    answer = one.ask(b"stranger", m.GetWords(table.first, table.last))
    assert isinstance(answer, m.Words)
    words = bytes(answer.words).decode().splitlines()
    assert words == [dataset.words[word] for word in dataset.permutation[table.first : table.last]]
    assert code(one.ask(b"stranger", m.GetWords(0, table.last))) == "bad-request"
    assert np.size(words) == len(table.values)
