"""Write docs/schemas/*.json: the schema of each document that `--json` prints. Run it after
changing one; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path

from moothall.cli.documents import schemas

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"


def main() -> None:
    """Write them all, and remove what is none of them."""
    FOLDER.mkdir(exist_ok=True)
    made = {
        f"{name}.json": json.dumps(schema, indent=2, sort_keys=True) + "\n"
        for name, schema in schemas().items()
    }
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
