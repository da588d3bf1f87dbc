"""Run the program: `python -m glovewire`."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first, where a user's click.py or signal.py would be imported as the library.
    if sys.path[0] == os.getcwd() != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
        del sys.path[0]
    from .cli.main import main

    main()
