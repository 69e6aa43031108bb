"""Prompts, and the reading of replies."""
