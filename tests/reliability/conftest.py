"""Fixtures for runs in separate processes."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "training"))
