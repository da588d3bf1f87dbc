"""How much of a core each process of a run gets from Ray."""

from __future__ import annotations

import pytest

from glovewire.common.runtime.ray_cluster import largest_share


@pytest.mark.parametrize(
    ("nodes", "processes", "share"),
    [
        ([8.0], 3, 1.0),
        ([1.0], 4, 0.25),
        ([1.0, 1.0], 3, 0.5),  # two thirds would leave no room for the third
        ([1.0, 3.0], 4, 1.0),
        ([2.0, 0.0], 3, 0.66),
        ([], 2, 0.01),
    ],
)
def test_every_process_fits_on_a_node(nodes: list[float], processes: int, share: float) -> None:
    assert largest_share(nodes, processes) == share
