"""`moothall executor`: the program that runs the tools inside a workspace's container."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from moothall.cli.options import example
from moothall.cli.runtime import report_errors, settings_of
from moothall.errors import ConfigurationError
from moothall.sandbox_runtime.confinement import EXECUTOR_PID, ROOT

_SOCKET = "/link/link.sock"


@click.command(epilog=example("moothall executor", f"moothall executor {_SOCKET}"))
@click.argument("socket", default=_SOCKET)
@click.argument("options", default="")
@click.pass_context
@report_errors
def executor(context: click.Context, *, socket: str, options: str) -> None:
    """Run the tools of a workspace, as the first process of its container. Hosts start it.

    It connects to SOCKET, the link of the workspace, confines itself as OPTIONS say (JSON; by
    default as the settings [sandbox] say) and answers until the link closes. It ends every process
    that it can signal, so it is refused outside a container.
    """
    if os.getpid() not in {1, EXECUTOR_PID} or not Path(ROOT).is_dir():
        raise ConfigurationError(
            "moothall executor is the first process of a workspace's container, which has a "
            f"folder {ROOT}; this is process "
            f'{os.getpid()}. Hosts start it: set workspace.kind = "kubernetes", and run `moothall '
            "serve`"
        )
    from moothall.sandbox_runtime import container_init

    sys.argv = ["moothall executor", socket, options or json.dumps(_executor_options(context))]
    container_init.main()


def _executor_options(context: click.Context) -> dict[str, object]:
    from moothall.workspace.executor_client import EXECUTOR, ExecutorSetup

    sandbox = settings_of(context, narrated=True).sandbox
    options = ExecutorSetup("", ()).describe_limits(
        sandbox, own_users=False, cgroup=False, proxied=False
    )
    return {**options, "program": EXECUTOR}
