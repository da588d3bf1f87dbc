"""Connect to a Ray cluster, or start one on this machine for as long as it is used.

Ray is an extra, imported only here and inside its own processes. It places and restarts processes; rows never travel
through it.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError, require_extra

OBJECT_STORE_BYTES = 80 << 20
"""The smallest that Ray accepts: only arguments and short results pass through it."""


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module `ray`, connected to the cluster at `address`, or (None) to a new one that ends with the block.

    Raises MissingExtra without Ray, UsageError when no cluster answers at that address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's coming default, else it prints a warning
    require_extra("ray", "ray", "this")
    import ray

    own = {} if address else {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except (ConnectionError, ValueError) as error:
        raise UsageError(f"no Ray cluster answers at {address}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def share_of_cpus(ray: Any, processes: int) -> float:
    """Return the cores that each of the processes asks for: one, or less where there are not enough."""
    cores = float(ray.cluster_resources().get("CPU", 1.0))
    return min(1.0, int(cores / processes * 100) / 100)
