"""The command-line flags of TrainingOptions, shared by every command that starts a training; click only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..model.options import (
    CLOCKS,
    DEFAULTS,
    EXPORTS,
    OBJECTIVES,
    OPTIMIZERS,
    PRESETS,
    RATE_SHAPES,
    SCHEDULES,
    TrainingOptions,
)

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = TrainingOptions()


def _use_preset(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Let the values of a preset be the defaults; what is given by flag, environment or file goes first."""
    if name is not None:
        ctx.default_map = {**PRESETS[name], **(ctx.default_map or {})}


def _option(*names: str, help: str, type: click.Choice[str] | None = None) -> Callable[[F], F]:
    """An option whose default depends on the objective: none until the objective is known, all of them in the help."""
    name = names[-1].lstrip("-").replace("-", "_")
    usual = getattr(DEFAULT, name)
    others = [f"{which} {values[name]}" for which, values in DEFAULTS.items() if name in values]
    shown = ", ".join([f"{DEFAULT.objective} {usual}", *others])
    return click.option(*names, default=None, type=type or usual.__class__, show_default=shown, help=help)


_FLAGS = (
    click.option(
        "--preset",
        type=click.Choice(sorted(PRESETS)),
        is_eager=True,
        expose_value=False,
        callback=_use_preset,
        help="Named defaults. seeds: random batches of 64, gradient of the mean loss, plain SGD at 0.01.",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default=None,
        show_default=DEFAULT.objective,
        help="What is minimised: GloVe's squared error of log counts, skip-gram with negative sampling, or tensors: "
        "what workers of your own compute (without a DATASET).",
    ),
    _option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        help="Blocks of the matrix on copies of their rows, or random minibatches with the optimizer on the server.",
    ),
    click.option(
        "--consistency",
        default=None,
        metavar="MODE",
        show_default="exclusive for blocks, async for minibatch",
        help="Blocks: exclusive (the same bytes for any number of workers) or async (no waiting). Minibatch: async, "
        "sync (one step of all workers), ssp:S (nobody more than S steps ahead), softsync:N (N steps a round).",
    ),
    click.option("--dim", default=DEFAULT.dim, help="Numbers in a vector."),
    click.option(
        "--tied/--untied", default=DEFAULT.tied, help="One vector a word, or word and context vectors, summed."
    ),
    _option("--optimizer", type=click.Choice(OPTIMIZERS), help="How steps are scaled."),
    _option("--epochs", help="Passes over the whole matrix."),
    _option("--learning-rate", "--lr", "learning_rate", help="At the start."),
    _option("--final-rate", help="Fraction of the rate that is left at the end."),
    _option("--x-max", help="Count from which the weight is 1."),
    _option("--alpha", help="Exponent of the weight."),
    click.option("--negatives", default=DEFAULT.negatives, help="Skip-gram: negatives for each entry."),
    click.option(
        "--sample",
        default=DEFAULT.sample,
        help="Skip-gram: words that make up more than this fraction of the text are thinned out; 1 is none.",
    ),
    click.option(
        "--export",
        type=click.Choice(EXPORTS),
        default=DEFAULT.export,
        help="What vectors.npy holds of an untied model: word and context vectors summed, or word vectors alone.",
    ),
    _option(
        "--spectrum",
        help="Power of the strength of directions in vectors.npy: below 1, those that most words share count less; 1 "
        "is as trained.",
    ),
    click.option("--init-scale", default=DEFAULT.init_scale, help="Vectors start uniform in +-this / sqrt(dim)."),
    _option("--initial-accumulator", help="AdaGrad's state at the start."),
    click.option("--batch-size", default=DEFAULT.batch_size, help="Entries in a minibatch."),
    click.option(
        "--mean-gradient/--sum-gradient",
        default=None,
        show_default="sum-gradient, tensors mean-gradient",
        help="Minibatch: the gradient of the mean loss of a batch, or of its sum.",
    ),
    click.option(
        "--backup", default=DEFAULT.backup, metavar="K", help="Sync: a step goes without its K slowest gradients."
    ),
    click.option(
        "--staleness",
        default=DEFAULT.staleness,
        metavar="POLICY",
        help="Minibatch, what a gradient of old rows counts: none, inverse (1/age), hyperbolic:B (half at age B), gap "
        "(by how far the rows moved), dc:L (corrected by L times that).",
    ),
    _option("--clock", type=click.Choice(CLOCKS), help="Age counts changes of the row, or all."),
    _option("--rate-shape", type=click.Choice(RATE_SHAPES), help="How the rate falls."),
    click.option("--warmup", default=DEFAULT.warmup, help="Fraction of the training in which the rate rises."),
    click.option("--momentum", default=DEFAULT.momentum, help="Of momentum and nesterov."),
    click.option("--beta1", default=DEFAULT.beta1, help="Of adam and adamw: decay of the mean gradient."),
    click.option("--beta2", default=DEFAULT.beta2, help="Of adam and adamw: decay of the mean squared gradient."),
    click.option("--epsilon", default=DEFAULT.epsilon, help="Of adam and adamw: added to the root."),
    click.option(
        "--weight-decay",
        default=DEFAULT.weight_decay,
        help="Minibatch: this times a parameter is added to its gradient; for adamw, taken off the parameter.",
    ),
    click.option("--clip-norm", default=DEFAULT.clip_norm, help="Tensors: longest gradient that is pushed; 0 is any."),
    click.option("--steps", default=DEFAULT.steps, help="Tensors: updates until training is complete; 0 is no end."),
    click.option("--seed", default=DEFAULT.seed, help="Fixes initial values and every order."),
)


def training_flags(command: F) -> F:
    """Add every flag of TrainingOptions to a command."""
    for flag in reversed(_FLAGS):
        command = flag(command)
    return command


def tell_overruled(saved: TrainingOptions) -> None:
    """Say on stderr which options of the command line do not count, because a resumed run goes on with its own."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    own = {name: getattr(saved, name) for name in given if hasattr(saved, name)}
    if other := [name for name, value in own.items() if context.params[name] != value]:
        told = ", ".join(f"{name.replace('_', '-')} {own[name]}" for name in other)
        click.echo(f"note: the run goes on as it was begun, with {told}", err=True)
