"""An address without a Ray cluster, and how much of a core each process of a run gets from Ray."""

from __future__ import annotations

import socket

import pytest

from glovewire.common.errors import UsageError
from glovewire.common.runtime.ray_cluster import connected, largest_share


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


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "127.0.0.1:65536", "127.0.0.1:gcs"])
def test_an_address_at_which_nothing_listens_is_an_error_at_once(address: str) -> None:
    """Seen to fail: Ray tried for more than six minutes."""
    pytest.importorskip("ray", reason="needs Ray")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with (
        pytest.raises(UsageError, match=r"no Ray cluster answers at 127\.0\.0\.1:.*ray start"),
        connected(address.format(port=port)),
    ):
        pass
