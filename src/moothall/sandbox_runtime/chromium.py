"""The first process of a browser's sandbox, run as a script: opens the proxy's port, passes it out,
and becomes Chromium.

The sandbox has its own loopback and no other network. Its listening socket is opened inside and
served outside: argv[1] is the descriptor of a socket to the caller, over which the listening socket
is sent, and which then is Chromium's debugging pipe. argv[2:] is the command; `{proxy}` in it is
replaced by the proxy's address.
"""

from __future__ import annotations

import os
import socket
import sys


def open_port(pipe: int) -> int:
    """Listen on a port of this network's loopback, send the listening socket over the descriptor of
    a socket, and return the port.
    """
    with (
        socket.socket(fileno=os.dup(pipe)) as outside,
        socket.create_server(("127.0.0.1", 0), backlog=128) as server,
    ):
        socket.send_fds(outside, [b"\n"], [server.fileno()])
        return int(server.getsockname()[1])


def main() -> None:
    """Start Chromium; never returns."""
    pipe = int(sys.argv[1])
    port = open_port(pipe)
    for descriptor in (3, 4):  # where Chromium looks for it
        if descriptor != pipe:
            os.dup2(pipe, descriptor)
        os.set_inheritable(descriptor, True)
    command = [word.replace("{proxy}", f"127.0.0.1:{port}") for word in sys.argv[2:]]
    os.execv(command[0], command)  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    main()
