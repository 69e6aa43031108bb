"""The link program of each workspace's pod: `python -m moothall.app.pod_link`. Its input is in its
environment.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from moothall.config import environment
from moothall.errors import ConfigurationError, MoothallError
from moothall.events.adapter import open_core_messages
from moothall.settings import load_settings
from moothall.telemetry import configure_logs
from moothall.workspace.kubernetes.link import LINK, Folders, PodLink, Transport


async def serve(folders: Folders) -> None:
    """Run the link of the workspace in the environment until its host is gone. Raises
    `MoothallError`.
    """
    settings = load_settings()
    configure_logs(settings.log)
    document = environment().get(LINK)
    if document is None or settings.bus.url is None:
        raise ConfigurationError(
            f"a link is started by a host, in a workspace's pod: {LINK} and MOOTHALL_BUS__URL are "
            "missing"
        )
    order = json.loads(document)
    link = PodLink(
        folders,
        {int(stream): name for stream, name in order["names"].items()},
        bool(order["proxied"]),
    )
    async with open_core_messages(settings.bus, settings.bus.url) as connection:
        serving = asyncio.ensure_future(
            link.run(Transport(connection.send, connection.listen), order["name"])
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()


def main() -> None:
    """Run until the host is gone."""
    try:
        asyncio.run(serve(Folders()))
    except MoothallError as error:
        sys.exit(f"link: {error.message}")


if __name__ == "__main__":
    main()
