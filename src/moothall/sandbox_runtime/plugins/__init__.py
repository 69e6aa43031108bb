"""What reports the cases of a project's tests: loaded by the project's own runner, in its own
interpreter. Not imported here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
