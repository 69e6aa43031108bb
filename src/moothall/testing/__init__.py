"""Real parts for tests: servers that start in milliseconds and do as they are told."""
