"""Settings in, running parts out: one function a process kind. The only room that knows every
adapter.
"""
