"""Train Thinc models with a parameter server. Needs the extra `thinc`."""

from glovewire.worker.dense.thinc import ThincModel, ThincTrainer

__all__ = ["ThincModel", "ThincTrainer"]
