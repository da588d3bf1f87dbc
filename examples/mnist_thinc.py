"""Train on handwritten digits with Thinc and a parameter server, from one Thinc config, as in Thinc's own tutorial.

    python examples/mnist_thinc.py                                             # scikit-learn's digits
    python examples/mnist_thinc.py --data path/to/mnist --set training.mode=async --set training.steps=400

`[model]` is a registered layer, `[optimizer]` the server's optimizer, `[parameter_server]` shards, workers and pool.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import images
import numpy as np
import thinc
import training
from thinc.api import Config, Model, Relu, Softmax, chain, fix_random_seed, registry

from glovewire.worker.dense import Client, own_core
from glovewire.worker.dense.thinc import ThincModel, ThincTrainer

CONFIG = Path(__file__).with_name("mnist_thinc.cfg")


@thinc.registry.layers("relu_relu_softmax.v1")
def make_relu_relu_softmax(hidden_width: int, dropout: float) -> Model[Any, Any]:
    """Build two dense layers and a softmax, as in the tutorial."""
    return chain(Relu(hidden_width, dropout=dropout), Relu(hidden_width, dropout=dropout), Softmax())


def make(config: str, pixels: int) -> Model[Any, Any]:
    """Build the config's model for images of `pixels` pixels, with the same initial values at every call."""
    fix_random_seed(0)
    model = registry.resolve({"model": Config().from_str(config)["model"]})["model"]
    return model.initialize(X=np.zeros((1, pixels), np.float32), Y=np.zeros((1, 10), np.float32))


def flat(pictures: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Reshape images to rows of pixels."""
    return pictures.reshape(len(pictures), -1)


def work(addresses: list[str], rank: int, config: str, data: str, batch: int) -> int:
    """Train as one worker until the run is over; return the number of batches."""
    found = images.load(data)
    X, Y = flat(found.train), np.eye(10, dtype=np.float32)[found.train_labels]
    model = make(config, X.shape[1])
    fix_random_seed(rank)  # dropout differs between workers
    with own_core(rank), Client(addresses, f"w{rank}") as ps:
        trainer = ThincTrainer(ps, model)
        for seen, at in enumerate(images.batches(len(Y), batch, seed=rank)):
            if not trainer.step(X[at], Y[at]):
                return seen
    return 0


def accuracy(model: Model[Any, Any], found: images.Images) -> float:
    """Return the accuracy on the test images."""
    return float(np.mean(model.predict(flat(found.test)).argmax(axis=1) == found.test_labels))


def parsed(text: str) -> Any:
    """Parse a config value as JSON; return the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), default=CONFIG, help="A Thinc config.")
@click.option("--data", default=images.DIGITS, help="digits, hub (MNIST by datasets), or a folder with the idx files.")
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a value of the config.")
def main(path: Path, data: str, overrides: tuple[str, ...]) -> None:
    """Train the model of a Thinc config with a parameter server and a pool of workers."""
    changes: dict[str, Any] = {}
    known = Config().from_disk(path)
    for override in overrides:
        key, _, value = override.partition("=")
        section, _, name = key.partition(".")
        if name not in known.get(section, {}):
            raise click.UsageError(f"{path.name} has no {key}")
        changes[key], before = parsed(value), known[section][name]
        if isinstance(changes[key], str) != isinstance(before, str):
            raise click.UsageError(f"{key} is {before!r} in {path.name}; {value!r} is of another type")
    config = Config().from_disk(path, overrides=changes)
    found, settings = images.load(data), config["training"]
    images.require_batch(len(found.train_labels), settings["batch_size"])
    model = make(config.to_str(), flat(found.train).shape[1])

    def score(tensors: training.Tensors) -> float:
        ThincModel(model).load(tensors)
        return accuracy(model, found)

    with tempfile.TemporaryDirectory() as scratch:
        training.train(
            Path(scratch) / "run", work, (config.to_str(), data, settings["batch_size"]), score,
            every=config["evaluation"]["frequency"], steps=settings["steps"], consistency=settings["mode"],
            **config["parameter_server"], **config["optimizer"],
        )  # fmt: skip


if __name__ == "__main__":
    import mnist_thinc  # import by name, so that pools can pickle `work`

    training.run(mnist_thinc.main)
