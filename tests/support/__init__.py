"""Real parts for our own tests: servers that start in milliseconds, and houses small enough for one
test.
"""
