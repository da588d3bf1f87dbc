"""Derive a command's click options from its config class, and build the config from the values given."""

import functools
from collections.abc import Callable
from dataclasses import MISSING, Field
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from ..model.options import PRESETS, TrainingOptions
from ..option import Config, Option, flags, options_of, spoken

C = TypeVar("C", bound=Config)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Given(Generic[C]):
    """A command's parameter values by name, from flags, environment, TOML file and defaults."""

    def __init__(self, config: type[C], values: dict[str, Any]) -> None:
        self.values = values
        self._config = config

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def training(self, **usual: Any) -> TrainingOptions:
        """Build the training options; `usual` replaces defaults, not values from a flag, the environment or a file."""
        source = click.get_current_context().get_parameter_source
        defaults = {name: value for name, value in usual.items() if source(name) in (None, ParameterSource.DEFAULT)}
        return TrainingOptions.from_flags(**{**self._of(TrainingOptions), **defaults})

    def config(self, **others: Any) -> C:
        """Build the config, and the training options in it; `others` replace or add fields."""
        if "options" in get_type_hints(self._config) and "options" not in others:
            others["options"] = self.training()
        return self._config(**{**self._of(self._config), **others})

    def _of(self, config: type[Config]) -> dict[str, Any]:
        """Return the values of the options of `config`, without None, which stands for the field's default."""
        found = {known.name: self.values.get(known.name) for known, _ in options_of(config)}
        return {name: value for name, value in found.items() if value is not None}


def takes(config: type[C]) -> Callable[[Callable[[Given[C]], dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Return a decorator that adds a config class's options to a command and calls its function with a `Given`."""

    def add(command: Callable[[Given[C]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(command)
        def run(**values: Any) -> dict[str, Any]:
            return command(Given(config, values))

        made: Callable[..., dict[str, Any]] = run
        for parameter in reversed(parameters(config)):
            made = parameter(made)
        return made

    return add


def parameters(config: type[Config]) -> list[Decorator]:
    """Return the click arguments and options of a config class, and those of the training options in it."""
    hints = get_type_hints(config)
    found = [_parameter(known, about, hints[known.name]) for known, about in options_of(config)]
    if hints.get("options") is TrainingOptions:
        found += [_PRESET, *parameters(TrainingOptions)]
    return found


def _parameter(known: Field[Any], about: Option, hint: Any) -> Decorator:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    parts = get_args(kinds[0]) if get_origin(kinds[0]) is tuple else ()
    several, count = parts[1:] == (...,), 1 if parts[1:] in ((), (...,)) else len(parts)
    plain = parts[0] if parts else kinds[0]
    required = known.default is MISSING and known.default_factory is MISSING and not about.shown
    if about.argument:
        shape: dict[str, Any] = {"nargs": -1 if several else 1, "required": required, "metavar": about.metavar}
        return click.argument(known.name, type=_type(about, plain), **shape)
    on_off = plain is bool and "/" in flags(known)[0]
    bare: dict[str, Any] = {} if about.bare is None else {"is_flag": False, "flag_value": about.bare}
    shape = {"is_flag": True} if plain is bool else {"type": _type(about, plain), "multiple": several, "nargs": count}
    shown = _shown(known, about)
    default: dict[str, Any] = {} if required else {"default": None if shown else known.default}
    return click.option(
        *flags(known),
        known.name,
        **({} if on_off else shape),
        **bare,
        **default,
        required=required,
        show_default=shown or None,
        metavar=about.metavar,
        hidden=about.hidden,
        callback=_callback(about),
        help=about.help,
    )


def _type(about: Option, plain: Any) -> Any:
    if about.choices:
        return click.Choice(about.choices)
    if about.parse is not None:
        return str
    if plain is Path or about.path is not None:
        return click.Path(path_type=Path if plain is Path else None, **(about.path or {}))
    return plain


def _callback(about: Option) -> Callable[[click.Context, click.Parameter, Any], Any] | None:
    """Return a click callback that applies `parse`, with BadParameter for its ValueError; None without `parse`."""
    parse = about.parse
    if parse is None:
        return None

    def convert(_: click.Context, __: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return convert


def _shown(known: Field[Any], about: Option) -> str:
    """Return the default as help shows it, "" if click can show the value itself."""
    if not about.per:
        return about.shown
    defaults = {TrainingOptions.objective: known.default, **about.per}
    return ", ".join(f"{objective} {_spelled(known, value)}" for objective, value in defaults.items())


def _spelled(known: Field[Any], value: Any) -> str:
    """Return a value as text; for a boolean, the name of the flag that sets it."""
    return flags(known)[0].split("/")[not value].lstrip("-") if isinstance(value, bool) else str(value)


def _use_preset(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
    """Make a preset's values the defaults; flags, environment and TOML file override them."""
    if name is not None:
        ctx.default_map = {**PRESETS[name], **(ctx.default_map or {})}


_PRESET = click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    is_eager=True,
    expose_value=False,
    callback=_use_preset,
    help="Named defaults. baseline: GloVe as a simple program trains it, to compare with: random batches of 64, "
    "gradients of their mean loss, plain SGD at a constant rate of 0.01.",
)


def note_ignored(saved: TrainingOptions) -> None:
    """Note on stderr which flags are ignored, because a resumed run keeps its `saved` options."""
    context = click.get_current_context()
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    own = {name: getattr(saved, name) for name in given if hasattr(saved, name)}
    if other := [name for name, value in own.items() if context.params[name] != value]:
        kept = ", ".join(f"{spoken(name)} {own[name]}" for name in other)
        click.echo(f"note: the run keeps the options it was started with: {kept}", err=True)
