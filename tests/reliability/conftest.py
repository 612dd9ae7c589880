"""Runs in processes of their own, as the tests of training have them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "training"))
