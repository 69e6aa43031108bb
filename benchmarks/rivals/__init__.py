"""The same workload as others would write it, each as its own documentation recommends, in an
environment of its own.

Each module has `open_rival(url)`: an async context manager of a coroutine function that runs one
deliberation of nine calls.
"""
