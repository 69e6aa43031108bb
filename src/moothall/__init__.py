"""Moothall: councils of agents whose answer is selected by evidence."""

__version__ = "0.1.0"
