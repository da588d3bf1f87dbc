"""Group the options of help pages under headings; those that most people need come first. No I/O."""

from collections.abc import Mapping, Sequence

FIRST = "Options that matter most"
OTHERS = "Other options"
TRAINING = (
    ("What is trained", ("objective", "preset", "dim", "tied", "x_max", "alpha", "export", "spectrum", "subwords")),
    ("How it is optimised", (
        "epochs", "learning_rate", "final_rate", "rate_shape", "warmup", "optimizer", "init_scale",
        "initial_accumulator", "seed",
    )),
    ("Schedule and consistency", ("schedule", "consistency", "local_epochs", "bfloat16")),
    ("Skip-gram (--objective sgns)", ("negatives", "sample")),
    ("Minibatches (--schedule minibatch)", (
        "batch_size", "mean_gradient", "backup", "staleness", "clock", "momentum", "beta1", "beta2", "epsilon",
        "weight_decay",
    )),
    ("Dense models (--objective tensors)", ("steps", "clip_norm")),
)  # fmt: skip
"""Groups of the training options, which several commands have."""
GROUPS: dict[str, tuple[tuple[str, Sequence[str]], ...]] = {
    "train": (
        (FIRST, (
            "out", "workers", "dim", "epochs", "learning_rate", "objective", "watch", "keep_best", "resume", "web",
        )),
        *TRAINING,
        ("Scores and early stopping", ("watch", "patience", "keep_best")),
        ("Processes, checkpoints and network", (
            "servers", "store", "launcher", "address", "init", "checkpoint_every", "keep_checkpoints", "keys",
            "latency", "progress", "verbose",
        )),
    ),
    "server": (
        (FIRST, ("out", "bind", "publish", "workers", "epochs", "dim", "learning_rate", "objective", "resume")),
        *TRAINING,
        ("Shards, checkpoints and workers", (
            "shard", "checkpoint_every", "keep_checkpoints", "checkpoints", "recover", "init", "lease_s", "patience_s",
        )),
        ("Network and logs", ("keys", "insecure", "prometheus", "verify", "log_level")),
    ),
    "study-speedup": TRAINING,
    "study-staleness": TRAINING,
    "bench-train": TRAINING,
}  # fmt: skip
"""Headings and parameter names, by command; only a name's first place counts. Other commands have one list."""


def grouped(command: str, names: Sequence[str]) -> Mapping[str, list[str]]:
    """Return {heading: names} for the options of a command, in the order in which help shows them."""
    rest = (OTHERS if command in GROUPS else "Options", names)
    found, left = {}, names
    for heading, wanted in (*GROUPS.get(command, ()), rest):
        found[heading] = [name for name in wanted if name in left]
        left = [name for name in left if name not in wanted]
    return {heading: shown for heading, shown in found.items() if shown}
