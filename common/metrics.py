"""One line of `metrics.jsonl`: what a loss sample leaves on disk for plots and replays."""

from __future__ import annotations

import dataclasses
import json

from .samples import LossSample, QualitySample

FIELDS = (
    "t", "entries", "loss", "epoch", "worker", "bias_only_loss", "norm", "entries_per_second", "mean_loss",
    "mean_bias_only_loss",
)  # fmt: skip


def as_line(sample: LossSample | QualitySample) -> str:
    """The sample as a JSON object and a newline; a score is marked by its topic."""
    if isinstance(sample, QualitySample):
        return json.dumps({"topic": sample.topic, **dataclasses.asdict(sample)}) + "\n"
    return json.dumps({name: getattr(sample, name) for name in FIELDS}) + "\n"
