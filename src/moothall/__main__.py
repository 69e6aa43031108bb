"""`moothall` and `python -m moothall`."""

from __future__ import annotations

import atexit
import gc

from moothall import cli


def main() -> None:
    """Run the command line. A short command is mostly imports, which leave no garbage to look for,
    neither meanwhile nor at the end.
    """
    gc.disable()  # until the command's own work begins: `cli.run.result_of`
    atexit.register(gc.freeze)
    cli.main()


if __name__ == "__main__":
    main()
