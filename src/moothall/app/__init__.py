"""The composition root: one function for each kind of process. The only package that knows every
adapter.
"""
