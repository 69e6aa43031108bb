"""The first process of the container for model-written code in a workspace's pod: `python -I -S -c
BOOT SOCKET OPTIONS`.

It waits for the socket of the pod's link, connects, and becomes the program that serves the link.
As the container's init it cannot be signalled from inside, and when the link closes, it ends and
with it the container. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import time

_POLL_SECONDS, _CONNECT_SECONDS = 0.02, 120.0


def main() -> None:
    """Serve the link whose socket argv names."""
    path, options = sys.argv[1], json.loads(sys.argv[2])
    link = socket.socket(socket.AF_UNIX)
    give_up_at = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            link.connect(path)
        except OSError as error:
            if time.monotonic() > give_up_at:
                sys.exit(f"no link at {path}: {error.strerror}")
            time.sleep(_POLL_SECONDS)
        else:
            break
    sys.argv = [sys.argv[0], str(link.detach()), sys.argv[2]]
    importlib.import_module(options["program"]).main()
