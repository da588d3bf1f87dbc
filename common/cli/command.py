"""Collect a command's options from, in order of precedence, flags, environment, TOML file and defaults.

Every command of the program is a `Command`: its help shows defaults and environment variables, it has `--config` and
`--json`, it refuses unknown options and keys, and it turns a GlovewireError into one line on stderr and exit 1 or 2.
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from ..errors import GlovewireError, UsageError
from ..runtime.rlimits import require_files
from ..text import printable
from .config_file import read_toml
from .groups import grouped

PLAIN = (str, int, float, bool)


class WrongUsage(click.ClickException):
    """A usage error of click, as one line that names the help page."""

    exit_code = 2

    def __init__(self, error: click.UsageError) -> None:
        text = " ".join(error.format_message().split())
        where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        super().__init__(text[:1].lower() + text[1:].removesuffix(".") + _origin(error) + where)

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the error to `file` or, by default, stderr, as one line like every other error."""
        click.echo(f"error: {self.message}", file=file, err=file is None)


def _origin(error: click.UsageError) -> str:
    """Return an end for the message that names the environment variable of a refused value; "" if it has none."""
    option, context = getattr(error, "param", None), error.ctx
    if not isinstance(option, click.Option) or context is None or option.name is None:
        return ""
    of_environment = context.get_parameter_source(option.name) is click.core.ParameterSource.ENVIRONMENT
    return f", in the environment variable {option.envvar}" if of_environment else ""


@contextmanager
def one_line_refusals() -> Iterator[None]:
    """Convert a click.UsageError in the block to WrongUsage; a group without a command still prints its help."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        raise WrongUsage(error) from error


class _NamedPath(click.Path):
    """A path that must not be empty: an empty one, as from an unset shell variable, would mean the current folder."""

    def __init__(self, path: click.Path) -> None:
        vars(self).update(vars(path))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert `value` as click.Path does; BadParameter if it is empty."""
        if value == "":
            self.fail("an empty path", param, ctx)
        return super().convert(value, param, ctx)


class Command(click.Command):
    """A click command that follows the project's rules; see the module's docstring."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings.setdefault("show_default", True)
        self.context_settings.setdefault("max_content_width", 110)
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])
        self.params += [
            click.Option(
                ["--config"],
                type=click.Path(path_type=Path),
                metavar="FILE.toml",
                is_eager=True,
                expose_value=False,
                callback=self._load_file,
                help=f"Take options from the table [{self.name}] of a TOML file; keys are the long options.",
            ),
            click.Option(["--json", "as_json"], is_flag=True, help="Make the last line of stdout one JSON object."),
        ]
        for option in self.params:
            if isinstance(option.type, click.Path):
                option.type = _NamedPath(option.type)
            if isinstance(option, click.Option):
                option.envvar = option.envvar or variable(str(self.name), name(option))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse `args`; raises WrongUsage, one line, for click's usage errors."""
        with one_line_refusals():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; with `--json`, print its function's result (a dict) as the last line of stdout."""
        as_json = ctx.params.pop("as_json")
        for text in self._unknown_variables(os.environ):
            click.echo(f"warning: {text}", err=True)
        try:
            require_files()
            with one_line_refusals():
                result = super().invoke(ctx)
        except GlovewireError as error:
            click.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
            ctx.exit(error.exit_status)
        if as_json and result is not None:
            click.echo(json.dumps(result, allow_nan=False, default=str))
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of `groups`, then one sentence on the other ways to set them."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        records = {str(option.name): record for option in options if (record := option.get_help_record(ctx))}
        for heading, names in grouped(str(self.name), list(records)).items():
            with formatter.section(heading):
                formatter.write_dl([records[each] for each in names])
        example = next(str(each.envvar) for each in self.params if isinstance(each, click.Option))
        formatter.write_paragraph()
        formatter.write_text(
            f"Every option can also be an environment variable such as {example}, or a line in --config."
        )

    def _unknown_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return a warning for each environment variable that has this command's prefix but names no option of it."""
        ours = variable(str(self.name), "")
        known = [str(option.envvar) for option in self.params if isinstance(option, click.Option)]
        return [
            f"the environment variable {printable(each)} is ignored: {self.name} has no such option"
            + suggest(each, known)
            for each in sorted(environment)
            if each.startswith(ours) and each not in known
        ]

    def _load_file(self, ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        try:
            ctx.default_map = {**(ctx.default_map or {}), **self._file_defaults(ctx, path)}
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from error

    def _file_defaults(self, ctx: click.Context, path: Path) -> dict[str, Any]:
        tables = read_toml(path)
        self._check_tables(ctx, path, tables)
        options = self._by_key()
        found: dict[str, Any] = {}
        for key, value in tables.get(str(self.name), {}).items():
            option = options.get(key.replace("_", "-"))
            if option is None:
                raise UsageError(f"{path}: unknown option {key!r} in [{self.name}]{suggest(key, options)}")
            if str(option.name) in found:
                raise UsageError(f"{path}: {key!r} in [{self.name}] is given twice under two names")
            found[str(option.name)] = _file_value(f"{path}: {key!r} in [{self.name}]", option, value)
        return found

    def _check_tables(self, ctx: click.Context, path: Path, tables: Mapping[str, object]) -> None:
        """Raise UsageError for tables of unknown commands and for keys outside a table, so that no typo is ignored."""
        program = ctx.find_root().command
        commands = program.list_commands(ctx.find_root()) if isinstance(program, click.Group) else [*tables]
        for key, value in tables.items():
            if key not in [*commands, self.name]:
                if isinstance(value, Mapping):
                    raise UsageError(f"{path}: no command is called [{key}]{suggest(key, commands)}")
                raise UsageError(f"{path}: {key!r} stands outside a table: put it under [{self.name}]")
            if not isinstance(value, Mapping):
                raise UsageError(f"{path}: [{key}] must be a table of options")
        if self.name not in tables:
            others = ", ".join(f"[{key}]" for key in tables) or "nothing"
            raise UsageError(f"{path} has no table [{self.name}], but {others}")

    def _by_key(self) -> dict[str, click.Parameter]:
        """Return the parameters that a file may set: options by their long names, single arguments by their names."""
        options = [option for option in self.params if isinstance(option, click.Option) and option.name != "config"]
        arguments = [each for each in self.params if isinstance(each, click.Argument) and each.nargs == 1]
        return {
            **{str(argument.name): argument for argument in arguments},
            **{flag[2:]: option for option in options for flag in option.opts if flag.startswith("--")},
        }


def variable(command: str, option: str) -> str:
    """Return the name of an option's environment variable, GLOVEWIRE_COMMAND_OPTION."""
    return f"GLOVEWIRE_{command}_{option}".upper().replace("-", "_")


def _file_value(where: str, option: click.Parameter, value: Any) -> Any:
    """Return a value from a TOML file as click expects it; UsageError if no flag could have this value."""
    several = option.nargs != 1 or getattr(option, "multiple", False)
    given = [value] if several and isinstance(value, PLAIN) else value
    kinds, wanted = _expected(option, several)
    values = given if several else [given]
    if not isinstance(values, list) or not all(type(each) in kinds and "\0" not in str(each) for each in values):
        raise UsageError(f"{where} must be {wanted}, not {value!r}")
    return given


def _expected(option: click.Parameter, several: bool) -> tuple[tuple[type, ...], str]:
    """Return the types that a TOML value (each item, if `several`) may have, and their description for errors."""
    if isinstance(option.type, click.Path):
        return (str,), "a path or a list of paths" if several else "a path"
    if several:
        groups = getattr(option, "multiple", False) and option.nargs != 1  # such as --analogy A B C, repeated
        return (*PLAIN, list) if groups else PLAIN, "a value or a list of values"
    if getattr(option, "is_flag", False):
        return (bool,), "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return (int, str), "a whole number"
    return (str, int, float), "a number" if isinstance(option.type, click.types.FloatParamType) else "one value"


def name(option: click.Option) -> str:
    """Return an option's longest flag without leading dashes: its key in a TOML file."""
    return max(option.opts, key=len).lstrip("-")


def suggest(word: str, known: Mapping[str, object] | list[str]) -> str:
    """Return `; did you mean 'x'?` with the `known` word most similar to `word`, "" if none is similar."""
    spelled = {each.replace("_", "-"): each for each in known}
    near = difflib.get_close_matches(word.replace("_", "-"), list(spelled), n=1, cutoff=0.5)
    return f"; did you mean {spelled[near[0]]!r}?" if near else ""
