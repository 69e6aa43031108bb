"""Finds inputs that tell answers apart: calls that docstrings and tests show, and variants of these. Pure; nothing is run here."""
