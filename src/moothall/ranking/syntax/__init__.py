"""Parsing of patches and of Python, Go, JavaScript and Rust code: brackets, statements, literals,
and code without comments. Pure.
"""
