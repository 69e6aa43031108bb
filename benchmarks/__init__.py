"""What Moothall costs and how fast it is, beside others, on a model that costs nothing. `python -m benchmarks --help`."""
