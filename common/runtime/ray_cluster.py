"""Ray, begun and ended in one place: a cluster that is there already, or one on this machine for as long as it is used.

Ray is an extra and is imported only here and inside its own processes. It places processes and starts them again; rows
never travel through it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UsageError, require_extra

OBJECT_STORE_BYTES = 80 << 20
"""The least that Ray takes: what passes through it are arguments and short answers."""


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected to the cluster at `address`, or (None) to one of its own that ends with the block.

    Raises MissingExtra without Ray, UsageError when there is no cluster at that address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # what it will do soon, said by a warning otherwise
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
    """How many cores each of so many processes asks for: one, or less where there are not enough."""
    cores = float(ray.cluster_resources().get("CPU", 1.0))
    return min(1.0, int(cores / processes * 100) / 100)
