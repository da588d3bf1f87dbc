"""Implement `glovewire config show`: which options a command would use, and where each value comes from."""

from typing import Any

import click
from click.core import ParameterSource

from glovewire.common.cli.command import Command, name
from glovewire.common.cli.config_file import toml_value
from glovewire.common.model.options import TrainingOptions
from glovewire.common.text import printable

from ..exits import Interruptible

FROM: dict[Any, str] = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.DEFAULT_MAP: "file or preset",
}


@click.group(cls=Interruptible)
def config() -> None:
    """Show options without running anything."""


@config.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command")
@click.argument("words", metavar="[OPTION]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def show(ctx: click.Context, command: str, words: tuple[str, ...]) -> None:
    """Show the options that COMMAND would use, and the source of each: flag, variable, file or default.

    Give COMMAND's own options as COMMAND takes them: `glovewire config show train --config run.toml --dim 50`.
    The output is a TOML file for --config.
    """
    program = ctx.find_root().command
    found = program.get_command(ctx.find_root(), command) if isinstance(program, click.Group) else None
    if not isinstance(found, Command):
        raise click.UsageError(f"{command!r} is not a command with options of its own, such as train")
    for parameter in found.params:
        parameter.required = False
    parsed = found.make_context(command, list(words), parent=ctx.find_root())
    lines = _lines(found, parsed)
    click.echo(f"[{command}]")
    width = max((len(line) for line, _ in lines), default=0)
    for line, source in lines:
        click.echo(printable(f"{line:<{width}}  # {source}"))


def _lines(command: click.Command, ctx: click.Context) -> list[tuple[str, str]]:
    """Return (line of TOML, source of its value) for each option that has a value."""
    usual = TrainingOptions.from_flags(**{name: ctx.params.get(name) for name in ("objective", "schedule", "epochs")})
    found = []
    for option in command.params:
        known, value = str(option.name), ctx.params.get(str(option.name))
        if known in ("config", "as_json") or (isinstance(option, click.Option) and option.hidden):
            continue
        source = ctx.get_parameter_source(known)
        if value is None:
            value = getattr(usual, known, None)
        if value is None or value == ():
            continue
        key = name(option) if isinstance(option, click.Option) else known
        told = str(option.envvar) if source is ParameterSource.ENVIRONMENT else FROM.get(source, "default")
        found.append((f"{key.replace('_', '-')} = {toml_value(value)}", told))
    return found
