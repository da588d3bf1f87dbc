"""Train dense models: a client for programs of your own, PyTorch and Thinc."""

from .affinity import own_core
from .client import Client

__all__ = ["Client", "own_core"]
