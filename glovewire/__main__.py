"""Run the program: `python -m glovewire`."""

from .cli.main import main

if __name__ == "__main__":
    main()
