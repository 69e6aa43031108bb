"""Benchmarks of Moothall and of similar systems on a stub model: `python -m benchmarks --help`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # for the package `support`
