"""Imported by multiprocessing's fork server before it forks: everything that a glovewire process needs, compiled."""

import worker.cli
import worker.service  # noqa: F401
from common.options import TrainingOptions
from server import kernels, optimizers
from worker import objectives

kernels.warm()
optimizers.warm(TrainingOptions(schedule="minibatch", consistency="async"))
objectives.warm()
