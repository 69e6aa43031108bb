"""Build the documentation site of this version into a folder that may contain other versions.

Use: `python scripts/build_docs.py FOLDER`. FOLDER then contains a folder for each version, and
`versions.js` for the version menu.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from packaging.version import Version
from sphinx.cmd.build import build_main

from moothall import __version__

DOCS = Path(__file__).resolve().parent.parent / "docs"


def main(folder: Path) -> int:
    """Build the site and return the exit code; warnings are errors."""
    options = ["-q", "-b", "html", "-W", "--keep-going", "-E", "-d", str(folder / ".doctrees")]
    if code := build_main([*options, str(DOCS), str(folder / __version__)]):
        return code
    names = [path.parent.name for path in folder.glob("*/index.html")]
    names.sort(key=Version, reverse=True)
    (folder / "versions.js").write_text(
        f"window.moothallVersions = {json.dumps(names)};\n", encoding="utf-8"
    )
    (folder / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n',
        encoding="utf-8",
    )
    print(f"built {folder / __version__ / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
