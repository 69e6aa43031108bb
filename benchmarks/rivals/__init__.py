"""The workload on other frameworks, each written as its documentation recommends, in a separate
environment.

Each module has an `open_...(url)` function: an async context manager that yields a coroutine
function, which runs one deliberation of nine calls.
"""
