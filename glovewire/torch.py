"""Train PyTorch modules with a parameter server. Needs the extra `torch`."""

from glovewire.worker.dense.pytorch import TorchModel, TorchTrainer

__all__ = ["TorchModel", "TorchTrainer"]
