"""Implement the `glovewire` program: a group of commands, each imported when it is used."""

import os
import pkgutil
import sys
from pathlib import Path
from typing import Any

from glovewire.common.runtime.signals import die_with_parent, exit_on_sigterm_as_first_process, signals_exit

with signals_exit():  # these imports take most of the start-up time; Ctrl-C would print a traceback
    import click

    from glovewire.common.cli.command import one_line_refusals, suggest

    from ..exits import Ended, one_line_endings

COMMANDS: dict[str, tuple[str, str]] = {
    "preprocess": (
        "glovewire.preprocess.cli:preprocess",
        "Turn a corpus into a dataset: vocabulary and co-occurrence matrix.",
    ),
    "train": ("glovewire.cli.train:train", "Train word vectors on this machine: servers, workers and monitor in one."),
    "server": ("glovewire.server.cli:server", "Serve one shard of the parameters."),
    "worker": ("glovewire.worker.cli:worker", "Train as one worker of a running server."),
    "monitor": ("glovewire.monitor.cli:monitor", "Watch a run in the terminal or a browser: loss, workers, events."),
    "stats": ("glovewire.cli.admin:stats", "Show the statistics of a running server."),
    "finish": ("glovewire.cli.admin:finish", "End a running training now and keep the vectors."),
    "checkpoint": ("glovewire.cli.admin:checkpoint", "Write a checkpoint of a running training now."),
    "keys": ("glovewire.cli.keys:keys", "Make keys, so that only clients with one can connect."),
    "info": ("glovewire.vectors.cli:info", "Describe a dataset, run or checkpoint, and verify it."),
    "evaluate": ("glovewire.vectors.cli:evaluate", "Score vectors on similarity and analogy sets."),
    "neighbours": ("glovewire.vectors.cli:neighbours", "Show the nearest words, or solve an analogy."),
    "export": ("glovewire.vectors.cli:export", "Write vectors or a dataset in other programs' formats."),
    "subwords": (
        "glovewire.vectors.cli:subwords",
        "Fit n-grams to trained vectors: better ones, also for unseen words.",
    ),
    "plan": ("glovewire.plan.cli:plan", "Predict how long an epoch takes on a cluster, and what limits it."),
    "study": ("glovewire.study.cli:study", "Compare ways to train: full trainings, one table, plots."),
    "config": ("glovewire.cli.config:config", "Show which options a command would use, and where each comes from."),
    "bench": ("glovewire.bench.cli:bench", "Measure the wire, training and preprocessing on this machine."),
}


class Program(click.Group):
    """Group of commands; `--help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of typical use."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if the name is unknown."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        if cmd_name in ("server", "train"):  # before NumPy is imported: the vectors' last bits depend on it
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        command = pkgutil.resolve_name(COMMANDS[cmd_name][0])
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command's name; an unknown name is an error that suggests a similar one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"no command is called {args[0]!r}{suggest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the command; report wrong usage and interruptions in one line."""
        with one_line_endings(), one_line_refusals():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run the command; report wrong usage and interruptions in one line."""
        with one_line_endings(), one_line_refusals():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=True,
)
@click.version_option(
    None, "-V", "--version", package_name="glovewire", message="glovewire %(version)s", help="Show the version."
)
def program() -> None:
    """Train word vectors, or dense models of your own, through a networked parameter server.

    \b
      glovewire preprocess pydoc --out data/pydoc
      glovewire train data/pydoc --out runs/pydoc
      glovewire neighbours runs/pydoc matrix probability

    \b
    Complete commands and options with TAB (or zsh_source, fish_source):
      eval "$(_GLOVEWIRE_COMPLETE=bash_source glovewire)"
    """


def main(*args: Any) -> None:
    """Run the program; entry point of the installed `glovewire` command."""
    try:
        with one_line_endings():
            die_with_parent()
            exit_on_sigterm_as_first_process()
            if Path.cwd() != Path(__file__).parents[2]:  # in a checkout, that is where children find the program
                os.environ["PYTHONSAFEPATH"] = "1"  # so that children do not import files of the current folder
            program.main(list(args) or sys.argv[1:], prog_name="glovewire")
    except Ended as ended:  # raised outside click's own error handling
        ended.show()
        sys.exit(ended.exit_code)
