"""Test support: real components that start in milliseconds, and servers small enough for one
test.
"""
