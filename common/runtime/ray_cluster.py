"""Connect to a Ray cluster, or start a temporary one on this machine.

Ray is an optional dependency, imported only here and in the processes that it starts. It places and restarts processes;
no rows are sent through it.
"""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError, require_extra

OBJECT_STORE_BYTES = 80 << 20
"""Smallest object store, in bytes, that Ray accepts: enough for the arguments and short results of our processes."""
_CONNECTS_WITHIN_S = 10.0


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address`; None starts one that ends with the block.

    Raises MissingExtra if Ray is not installed, UsageError if no cluster answers at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default, else it prints a warning
    require_extra("ray", "ray", "this")
    import ray

    if address:
        _check_listens(address)
    own = {} if address else {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers at {address}: start one with `ray start --head`") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Raise UsageError if nothing listens at HOST:PORT, which Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address:
        return  # "auto", for example
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECTS_WITHIN_S).close()
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers at {address}: {error}; start one with `ray start --head`") from error


def share_of_cpus(ray: Any, processes: int) -> float:
    """Return the number of cores to request for each of `processes` processes: 1, or less if Ray has fewer cores."""
    nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    return largest_share(nodes, processes)


def largest_share(nodes: Sequence[float], processes: int) -> float:
    """Return the largest share of a core, at most 1, at which all processes fit on nodes with these core counts."""
    shares = {min(1.0, int(cores / count * 100) / 100) for cores in nodes for count in range(1, processes + 1)}
    fitting = [share for share in shares if share and sum(int(cores / share) for cores in nodes) >= processes]
    return max(fitting, default=0.01)


def on_this_node(ray: Any) -> Any:
    """Return the scheduling strategy that puts an actor on the node of this process."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
