"""The first process of a container that runs what a model wrote, of a workspace's pod: `python -I
-S -c BOOT SOCKET OPTIONS`.

It waits for the socket of the pod's link, connects, and becomes the program that answers there. As
init of its container nothing in it can signal it, and when the link is gone it ends, and all else
in the container with it. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import time

_LOOK_SECONDS, _WAIT_SECONDS = 0.02, 120.0


def main() -> None:
    """Serve the link whose socket argv names."""
    path, options = sys.argv[1], json.loads(sys.argv[2])
    link = socket.socket(socket.AF_UNIX)
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            link.connect(path)
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"no link at {path}: {error.strerror}")
            time.sleep(_LOOK_SECONDS)
        else:
            break
    sys.argv = [sys.argv[0], str(link.detach()), sys.argv[2]]
    importlib.import_module(options["program"]).main()
