"""Reporters of test cases, loaded by a project's own test runner in its own interpreter. Nothing
here imports them.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
