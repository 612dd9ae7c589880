"""``python -m rankwise`` is the same as ``rankwise``."""

from rankwise.cli import main

if __name__ == "__main__":
    main()
