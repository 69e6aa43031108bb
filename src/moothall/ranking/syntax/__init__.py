"""Reads patches and the text of Python, Go, JavaScript and Rust: brackets, statements, literals,
and code without its words. Pure.
"""
