"""Settings in, running parts out: one function a process kind. The only package that knows every
adapter.
"""
