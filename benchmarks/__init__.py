"""What Moothall costs and how fast it is, beside others, on a model that costs nothing. `python -m
benchmarks --help`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where `support` is
