"""Replaces `python FILE` and `python -m MODULE` if these run unittest's runner, as Django's
`manage.py test` does.

It puts our runner in the place of unittest's, which reports each case in the format of
moothall_unittest. Supports Python 3.7 and later.
"""

from __future__ import annotations

import os
import runpy
import sys
import unittest

from moothall_unittest import Runner  # type: ignore[import-not-found] # beside it, on the path of the sandbox


def main() -> None:
    """Run the script or module that the arguments name, on the arguments after it."""
    os.environ.pop("PYTHONSAFEPATH", None)  # for this process only
    unittest.TextTestRunner = unittest.runner.TextTestRunner = Runner  # type: ignore[misc]
    arguments = sys.argv[1:]
    module = arguments[1] if arguments[0] == "-m" else ""
    folder = os.getcwd() if module else os.path.dirname(os.path.abspath(arguments[0]))
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)  # as Python does, and not before the runner was loaded
    sys.argv = arguments[1:] if module else arguments
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
