"""The training options: all problems at once, numbers that are none, the rate's way down, what crosses the wire."""

from __future__ import annotations

from typing import Any

import click
import msgpack
import pytest

from glovewire.common.cli.options import takes
from glovewire.common.errors import UsageError
from glovewire.common.model.options import (
    CONSISTENCIES,
    DEFAULTS,
    OBJECTIVES,
    OPTIMIZERS,
    PRESETS,
    SCHEDULES,
    TrainingOptions,
)
from glovewire.common.option import spoken


def test_the_defaults_are_allowed() -> None:
    assert TrainingOptions().schedule == "blocks"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("learning_rate", 0.0),
        ("learning_rate", -0.1),
        ("learning_rate", 1.1e6),
        ("x_max", float("nan")),
        ("x_max", 0.0),
        ("alpha", float("nan")),
        ("alpha", -1.0),
        ("final_rate", float("nan")),
        ("final_rate", -0.5),
        ("init_scale", float("inf")),
        ("initial_accumulator", float("nan")),
        ("dim", 0),
        ("dim", 1 << 20),
        ("epochs", 0),
        ("batch_size", 0),
        ("seed", -1),
        ("seed", 1 << 63),
        ("objective", "skip"),
        ("schedule", "random"),
        ("optimizer", "adam2"),
        ("consistency", "eventual"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=spoken(name)):
        TrainingOptions(**{name: value})


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        TrainingOptions(dim=0, epochs=-3, learning_rate=float("nan"), alpha=-1.0, optimizer="x", seed=-1)
    for name in ("dim", "epochs", "learning-rate", "alpha", "optimizer", "seed"):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_steps_beyond_any_float_is_refused(digits: int) -> None:
    with pytest.raises(UsageError, match="consistency must have a whole number after ssp:"):
        TrainingOptions(schedule="minibatch", consistency="ssp:" + "9" * digits)


def test_a_consistency_belongs_to_its_schedule() -> None:
    with pytest.raises(
        UsageError, match=r"consistency must be one of async, .*softsync:N, not 'exclusive' for minibatch"
    ):
        TrainingOptions(schedule="minibatch", consistency="exclusive")
    for schedule, modes in CONSISTENCIES.items():
        for mode, number in modes.items():
            TrainingOptions(schedule=schedule, consistency=mode + ":3" * bool(number))


def test_blocks_know_no_weight_decay() -> None:
    with pytest.raises(UsageError, match="weight-decay: it needs minibatch"):
        TrainingOptions.from_flags(weight_decay=0.01)
    assert TrainingOptions.from_flags(weight_decay=0.01, schedule="minibatch").weight_decay == 0.01
    assert TrainingOptions.of_tensors(weight_decay=0.01).weight_decay == 0.01


def test_a_schedule_without_a_consistency_gets_its_first() -> None:
    assert TrainingOptions.from_flags(schedule="minibatch").consistency == "async"
    assert TrainingOptions.from_flags().consistency == "exclusive"
    assert TrainingOptions.from_flags("async", schedule="blocks").consistency == "async"


def test_an_objective_brings_its_defaults_and_gives_way_to_what_is_given() -> None:
    assert TrainingOptions.from_flags(objective="glove", epochs=None) == TrainingOptions(local_epochs=2)
    for objective in OBJECTIVES:
        options = TrainingOptions.from_flags(objective=objective, epochs=77, x_max=None)
        assert (options.objective, options.epochs) == (objective, 77)
        assert options.x_max == DEFAULTS[objective].get("x_max", TrainingOptions.x_max)


@pytest.mark.parametrize(
    ("flags", "local_epochs"),
    [
        ({}, 2),
        ({"epochs": 6}, 2),
        ({"epochs": 7}, 1),
        ({"epochs": 9, "local_epochs": 3}, 3),
        ({"epochs": 6, "local_epochs": 1}, 1),
        ({"schedule": "minibatch"}, 1),
        ({"objective": "sgns"}, 1),
        ({"objective": "tensors"}, 1),
        (PRESETS["baseline"], 1),
    ],
)
def test_two_epochs_are_trained_in_a_row_where_that_is_possible(flags: dict[str, Any], local_epochs: int) -> None:
    options = TrainingOptions.from_flags(**flags)
    assert options.local_epochs == local_epochs
    assert options.sweeps * local_epochs == options.epochs


def test_local_epochs_that_do_not_fit_are_refused_with_the_next_number_that_does() -> None:
    with pytest.raises(UsageError, match="epochs must be a multiple of local-epochs, which is 3: 9, not 7"):
        TrainingOptions(epochs=7, local_epochs=3)
    with pytest.raises(UsageError, match="epochs must be a multiple of local-epochs, which is 9: 9, not 7"):
        TrainingOptions(epochs=7, local_epochs=9)
    with pytest.raises(UsageError, match="local-epochs is for blocks"):
        TrainingOptions(schedule="minibatch", consistency="async", local_epochs=2)
    with pytest.raises(UsageError, match="local-epochs must be between 1"):
        TrainingOptions(local_epochs=0)


@pytest.mark.parametrize("flags", [{"schedule": "minibatch"}, {"optimizer": "sgd"}, {"tied": True}, {"negatives": 0.0}])
def test_skip_gram_is_refused_what_it_does_not_have(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(flags))):
        TrainingOptions.from_flags(objective="sgns", **flags)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_command_without_flags_has_the_defaults_of_its_objective(objective: str) -> None:
    """A flag with a default of its own would hide the objective's."""
    command = click.command()(takes(TrainingOptions)(lambda given: {"options": given.training()}))
    options = command.main(["--objective", objective], standalone_mode=False)["options"]
    assert options == TrainingOptions.from_flags(objective=objective)


def test_every_name_has_a_place() -> None:
    assert set(DEFAULTS) == set(OBJECTIVES)
    assert set(CONSISTENCIES) == set(SCHEDULES)
    defaults = TrainingOptions()
    assert defaults.objective in OBJECTIVES
    assert defaults.optimizer in OPTIMIZERS


def test_the_rate_falls_in_a_line_and_stays_in_its_bounds() -> None:
    options = TrainingOptions(learning_rate=0.2, final_rate=0.1)
    assert options.rate(0.0) == pytest.approx(0.2)
    assert options.rate(0.5) == pytest.approx(0.11)
    assert options.rate(1.0) == pytest.approx(0.02)
    assert options.rate(-1.0) == options.rate(0.0)
    assert options.rate(7.0) == options.rate(1.0)
    assert TrainingOptions(final_rate=1.0).rate(0.7) == TrainingOptions().learning_rate


def test_a_welcome_carries_every_option_there_and_back() -> None:
    options = TrainingOptions(dim=17, tied=False, optimizer="sgd", learning_rate=0.3, seed=(1 << 63) - 1)
    sent = msgpack.unpackb(msgpack.packb(options.as_message()))
    assert TrainingOptions.from_message(sent) == options
    assert {type(value) for value in options.as_message().values()} <= {int, float, str, bool}


def test_an_option_that_this_program_does_not_know_is_named() -> None:
    with pytest.raises(UsageError, match="unknown here: inertia, yawning"):
        TrainingOptions.from_message({**TrainingOptions().as_message(), "yawning": 3, "inertia": 0.9})


def test_an_option_that_another_version_did_not_have_is_named_and_not_made_up() -> None:
    sent = TrainingOptions(objective="sgns").as_message()
    del sent["sample"], sent["learning_rate"]
    with pytest.raises(UsageError, match=r"another version .* missing: learning-rate, sample"):
        TrainingOptions.from_message(sent)


@pytest.mark.parametrize(("name", "value"), [("dim", 0), ("learning_rate", -1.0), ("schedule", "x")])
def test_a_servers_options_are_checked_as_any(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=spoken(name)):
        TrainingOptions.from_message({**TrainingOptions().as_message(), name: value})


@pytest.mark.parametrize(("name", "value"), [("dim", "16"), ("learning_rate", "fast"), ("tied", 3), ("epochs", 2.5)])
def test_a_servers_option_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name):
        TrainingOptions.from_message({**TrainingOptions().as_message(), name: value})
