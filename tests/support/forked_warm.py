"""Everything that a glovewire process needs, compiled: multiprocessing's fork server imports this before it forks."""

import gc
from contextlib import suppress
from importlib import import_module

import matplotlib.backends.backend_agg  # noqa: F401

import glovewire.api.child
import glovewire.cli.admin
import glovewire.cli.train
import glovewire.launch.local
import glovewire.monitor.cli
import glovewire.monitor.watch
import glovewire.preprocess.cli
import glovewire.preprocess.pipeline
import glovewire.server.cli
import glovewire.server.service
import glovewire.worker.cli
import glovewire.worker.service  # noqa: F401
from glovewire.common.model.options import TrainingOptions
from glovewire.server.table import kernels, optimizers
from glovewire.worker.kernels import objectives

for slow in ("bokeh.server.server", "matplotlib.pyplot", "nltk", "s3fs"):
    with suppress(ImportError):
        import_module(slow)
kernels.warm()
optimizers.warm(TrainingOptions(schedule="minibatch", consistency="async"))
objectives.warm()
gc.collect()
gc.freeze()
