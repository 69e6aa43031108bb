"""`moothall` and `python -m moothall`."""

from __future__ import annotations

import atexit
import gc
import os

from moothall import cli


def main() -> None:
    """Run the command line. The garbage collector is off during imports, which are most of a short
    command and leave no garbage.
    """
    # Plugins that other packages install for pydantic are not used. Looking for them takes longer
    # with each installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()  # until the command's own work begins: `cli.runtime.result_of`
    atexit.register(gc.freeze)
    cli.main()


if __name__ == "__main__":
    main()
