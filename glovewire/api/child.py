"""Run one glovewire command in this process and print its result, or its error, as one JSON object on the last line.

Started by `background.run`. In a process of its own, a command may fork, handle signals and load its libraries without
touching the program or the notebook that called it.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from glovewire.common.errors import GlovewireError, Interrupted, OutputError, UsageError
from glovewire.common.runtime.rlimits import require_files
from glovewire.common.runtime.signals import die_with_parent

from ..cli.main import program
from ..exits import CtrlC, Ended, one_line_endings


def main() -> None:
    """Run the command in the arguments of this process."""
    die_with_parent()
    print(json.dumps(outcome(sys.argv[1], sys.argv[2:]), default=str), flush=True)


def outcome(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return `{"result": ...}` of a command, or the `code` and `text` of the error that it raised."""
    try:
        with one_line_endings():
            command = program.get_command(click.Context(program), name)
            assert command is not None
            with command.make_context(name, list(arguments)) as context:
                context.params.pop("as_json")
                require_files()
                return {"result": click.Command.invoke(command, context)}
    except GlovewireError as error:
        return _failure(type(error), str(error))
    except CtrlC as error:
        return _failure(Interrupted, error.message)
    except Ended as error:  # a lack of memory or disk space
        return _failure(OutputError, error.message)
    except click.ClickException as error:
        return _failure(UsageError, error.format_message().partition(" (see ")[0])


def _failure(kind: type[GlovewireError], text: str) -> dict[str, Any]:
    return {"code": kind.code, "text": " ".join(text.split())}


if __name__ == "__main__":
    main()
