"""Write docs/schemas/*.json: the schemas of the documents that `--json` prints.

Run it after a change of a document; a test compares both.
"""

from __future__ import annotations

import json
from pathlib import Path

from moothall.cli.documents import schemas

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"


def main() -> None:
    """Write all schemas, and remove other files."""
    FOLDER.mkdir(exist_ok=True)
    texts = {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True) + "\n"
        for name, schema in schemas().items()
    }
    for path in FOLDER.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
