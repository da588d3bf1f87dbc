"""A Thinc model as a worker: its walk names the parameters, and it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dense_shards import addresses, shards_of

from glovewire.common.errors import UsageError
from glovewire.worker.dense.client import Client
from glovewire.worker.dense.thinc import ThincModel, ThincTrainer, cross_entropy

pytest.importorskip("thinc", reason="needs the extra thinc")


@pytest.mark.filterwarnings("ignore")  # of Thinc's own dependencies
def test_a_thinc_model_learns_through_the_server(tmp_path: Path) -> None:
    from thinc.api import Relu, Softmax, chain, fix_random_seed

    fix_random_seed(0)
    draw = np.random.default_rng(0)
    X = draw.normal(size=(64, 10)).astype(np.float32)
    Y = np.eye(3, dtype=np.float32)[(X @ draw.normal(size=(10, 3))).argmax(axis=1)]
    model = chain(Relu(16), Softmax())
    with pytest.raises(UsageError, match="call initialize"):
        ThincModel(model)
    model.initialize(X=X, Y=Y)
    options = {"optimizer": "adam", "learning_rate": 0.05}
    with shards_of(tmp_path / "run", 2, **options) as daemons, Client(addresses(daemons), "a") as ps:
        trainer = ThincTrainer(ps, model)
        assert [tensor.name for tensor in ps.spec.tensors] == ["1.relu.W", "1.relu.b", "2.softmax.W", "2.softmax.b"]
        for _ in range(60):
            assert trainer.step(X, Y)
        trainer.model.load(ps.pull())
        ps.finish()
        assert not trainer.step(X, Y)
    guesses = model.predict(X)
    assert (guesses.argmax(axis=1) == Y.argmax(axis=1)).mean() > 0.97
    gradient, loss = cross_entropy(guesses, Y)
    assert loss < 0.3
    np.testing.assert_allclose(gradient.sum(), 0.0, atol=1e-5)
