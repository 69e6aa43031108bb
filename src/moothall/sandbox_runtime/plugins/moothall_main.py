"""Stands in for `python -m pytest` in a sandbox: the runner is loaded before anything of the
working directory can be.

Runs under Python 3.7 and on. `python -m` puts the working directory first on the path, and so a
`pytest.py` there would be the runner, and a `*.dist-info` one of its plugins. Here pytest and the
list of what is installed are read without it; then it is put where the tests expect it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _outside(path: list[str], here: str) -> list[str]:
    return [
        entry
        for entry in path
        if os.path.abspath(entry or ".") != here and not entry.startswith(here + os.sep)
    ]


def main() -> None:
    """Run pytest on the arguments."""
    os.environ.pop(
        "PYTHONSAFEPATH", None
    )  # of this process alone: what tests start is started as ever
    here = os.getcwd()
    theirs = [
        entry
        for number, entry in enumerate(sys.path)
        if number or os.path.abspath(entry or ".") != here
    ]
    sys.path[:] = _outside(theirs, here)
    try:
        import pytest
    except ImportError:
        sys.path[:] = theirs  # it lies in the tree: this is pytest's own repository
        import pytest
    sys.path[:] = theirs
    if sys.version_info >= (3, 8):  # noqa: UP036 - a project may run on an older one
        from importlib import metadata

        installed, find = list(metadata.distributions()), metadata.distributions
        metadata.distributions = lambda **kwargs: find(**kwargs) if kwargs else iter(installed)
    sys.path.insert(0, here)
    sys.argv[0] = pytest.__file__
    sys.exit(_entry_point()())


def _entry_point() -> Callable[[], Any]:
    """Return the function that `python -m pytest` calls. pytest 9.1 made `console_main` private and
    deprecated the public name; before 6.1 there is neither.
    """
    import pytest
    from _pytest import config

    named = (
        getattr(place, name, None)
        for place, name in ((config, "_console_main"), (pytest, "console_main"))
    )
    return next(filter(None, named), pytest.main)


if __name__ == "__main__":
    main()
