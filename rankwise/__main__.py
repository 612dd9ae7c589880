"""``python -m rankwise`` is the same as ``rankwise``."""

import sys
from pathlib import Path

# With -m, Python searches the current folder first, whose modules must not replace those of rankwise.
if Path(__file__).parents[1] != Path.cwd() and sys.path and sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]

from rankwise.cli import main

if __name__ == "__main__":
    main()
