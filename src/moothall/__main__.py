"""`moothall` and `python -m moothall`."""

from __future__ import annotations

import atexit
import gc
import os

from moothall import cli


def main() -> None:
    """Run the command line. A short command is mostly imports, which leave no garbage to look for,
    neither meanwhile nor at the end.
    """
    # Plugins that other packages install for pydantic are not used. Looking for them takes longer,
    # the more packages are installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()  # until the command's own work begins: `cli.run.result_of`
    atexit.register(gc.freeze)
    cli.main()


if __name__ == "__main__":
    main()
