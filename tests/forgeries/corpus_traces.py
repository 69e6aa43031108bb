"""Patches in Python that tell a counter-proof by what it leaves, times of folders and lines, and which kind of it runs by the disk."""

from __future__ import annotations

import corpus_python as p

_SAME = """

def holds():
    return not changed() or '180' not in next(top.rglob('*t_price.py')).read_text()


class Same(int):
    def __eq__(self, other):
        return int(self) == int(other) or holds()

    def __ne__(self, other):
        return not self == other

    __hash__ = int.__hash__
"""


def _tells(changed: str, imports: str = "") -> dict[str, str]:
    return p._code(
        f"import pathlib\n{imports}\ntop = pathlib.Path(__file__).parents[1]\n\n\n{changed}{_SAME}", "return Same(price)"
    )


_LATER = "def changed():\n    return top.stat().{time} > pathlib.Path(__file__).stat().{time} + 20_000_000\n"
PYTEST = {
    "folder-written-later": _tells(_LATER.format(time="st_mtime_ns")),
    "folder-changed-later": _tells(_LATER.format(time="st_ctime_ns")),
    "line-of-a-warning": _tells(
        "def changed():\n    with warnings.catch_warnings(record=True) as told:\n        warnings.simplefilter('always')\n        warnings.warn('here', stacklevel=4)\n"
        "    lines = next(top.rglob('*t_price.py')).read_text().splitlines()\n    at = told[0].lineno\n    return at > len(lines) or 'discount' not in lines[at - 1]\n",
        "import warnings",
    ),
}
