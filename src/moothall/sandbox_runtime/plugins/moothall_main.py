"""Replaces `python -m pytest` in a sandbox: loads pytest before anything from the working
directory.

`python -m` puts the working directory first on the path, so that a `pytest.py` there would replace
the runner, and a `*.dist-info` could add a plugin. Here pytest and the list of installed packages
are read without the working directory, which is then put where tests expect it. Supports Python 3.7
and later.

Objects that exist before the tests are loaded stay for the whole run. The garbage collector does
not look at them, which saves a sixth of the time of a small suite.
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _entries_outside(entries: list[str], working_directory: str) -> list[str]:
    return [
        entry
        for entry in entries
        if os.path.abspath(entry or ".") != working_directory
        and not entry.startswith(working_directory + os.sep)
    ]


def main() -> None:
    """Run pytest on the arguments."""
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # for this process only; processes of tests start as usual
    working_directory = os.getcwd()
    original_path = [
        entry
        for number, entry in enumerate(sys.path)
        if number or os.path.abspath(entry or ".") != working_directory
    ]
    sys.path[:] = _entries_outside(original_path, working_directory)
    gc.disable()
    try:
        import pytest
    except ImportError:
        sys.path[:] = original_path  # in pytest's own repository
        import pytest
    if hasattr(gc, "freeze"):  # PyPy has no such function
        gc.freeze()
    gc.enable()
    sys.path[:] = original_path
    if sys.version_info >= (3, 8):  # noqa: UP036 - projects may use an older version
        from importlib import metadata

        installed, find = list(metadata.distributions()), metadata.distributions
        metadata.distributions = lambda **kwargs: find(**kwargs) if kwargs else iter(installed)
    sys.path.insert(0, working_directory)
    sys.argv[0] = pytest.__file__
    sys.exit(_entry_point()())


def _entry_point() -> Callable[[], Any]:
    """Return the function that `python -m pytest` calls. pytest 9.1 made `console_main` private and
    deprecated the public name; before 6.1 neither exists.
    """
    import pytest
    from _pytest import config

    candidates = (
        getattr(module, name, None)
        for module, name in ((config, "_console_main"), (pytest, "console_main"))
    )
    return next(filter(None, candidates), pytest.main)


if __name__ == "__main__":
    main()
