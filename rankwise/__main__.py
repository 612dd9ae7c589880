"""The command ``rankwise``; ``python -m rankwise`` is the same."""

import sys
from pathlib import Path

from rankwise.interrupts import handle_ctrl_c

# With -m, Python searches the current folder first, whose modules must not replace those of rankwise.
if Path(__file__).parents[1] != Path.cwd() and sys.path and sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]


def main() -> None:
    """Runs the command. Imports the rest after the handler of Ctrl-C is set, because that takes seconds."""
    handle_ctrl_c()
    from rankwise.cli import main as run

    run()


if __name__ == "__main__":
    main()
