"""Train dense models from your own program, with adapters for PyTorch and Thinc."""

from .affinity import own_core
from .client import Client

__all__ = ["Client", "own_core"]
