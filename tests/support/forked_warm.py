"""Imported by multiprocessing's fork server before it forks: everything that a glovewire process needs, compiled."""

import glovewire.worker.cli
import glovewire.worker.service  # noqa: F401
from glovewire.common.model.options import TrainingOptions
from glovewire.server.table import kernels, optimizers
from glovewire.worker.kernels import objectives

kernels.warm()
optimizers.warm(TrainingOptions(schedule="minibatch", consistency="async"))
objectives.warm()
