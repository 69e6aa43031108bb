"""Fakes and contract suites for authors of a bus, a model server or a client."""
