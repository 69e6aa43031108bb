"""The first process of a browser's sandbox, run as a script: opens the port of the proxy, hands it
out, becomes Chromium.

The sandbox has a loopback of its own and no other network. What listens there was opened inside and
is served outside: argv[1] is the descriptor of a socket to the side that asked, over which the
listening socket is sent, and which then is Chromium's debugging pipe. argv[2:] is the command;
`{proxy}` in it is where the proxy listens.
"""

from __future__ import annotations

import os
import socket
import sys


def open_port(pipe: int) -> int:
    """Open a port of this network's loopback, hand it out over the descriptor of a socket, and
    return its number.
    """
    with (
        socket.socket(fileno=os.dup(pipe)) as outside,
        socket.create_server(("127.0.0.1", 0), backlog=128) as listening,
    ):
        socket.send_fds(outside, [b"\n"], [listening.fileno()])
        return int(listening.getsockname()[1])


def main() -> None:
    """Never returns."""
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
