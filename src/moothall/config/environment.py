"""What is read of the process's environment beside the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

# uvloop starts programs by fork(), in which gRPC's handlers of a fork run: while gRPC is busy, every tenth program or so died of
# them before it began (a failed assertion in its pollers). Nothing of ours uses gRPC in a child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def environment() -> Mapping[str, str]:
    """Return the process's environment, for credentials that a registered repository names by variable."""
    return dict(os.environ)
