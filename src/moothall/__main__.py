"""`moothall` and `python -m moothall`."""

from __future__ import annotations

from moothall.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
