"""Real parts for our own tests: servers that start in milliseconds, and servers small enough for
one
test.
"""
