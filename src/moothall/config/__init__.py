"""Every setting, with a default that works on a laptop and protects.

`MOOTHALL_` environment variables (`__` between levels) override a TOML file (`--config`, or the user's own config.toml), which
overrides the defaults. An unset URL means the embedded part. A secret may name a file that holds
it, with `_file` after its name: `MOOTHALL_LLM__API_KEY_FILE`. No other room reads the environment.
"""

from __future__ import annotations

from moothall.config.file import default_file, environment
from moothall.config.hands import Agents, Guard, Limits, Runner, Sandbox, Tools, Wasm, Workspace
from moothall.config.jobs import Jobs
from moothall.config.models import Models
from moothall.config.packages import Indexes, read_indexes
from moothall.config.parts import Bus, Forge, Graph, Grpc, Llm, Log, Metrics, Oidc, Ray, Serve, Trace, Web, Webhook
from moothall.config.section import Section
from moothall.config.settings import Settings, read_settings, secret_values

__all__ = [
    "Agents",
    "Bus",
    "Forge",
    "Graph",
    "Grpc",
    "Guard",
    "Indexes",
    "Jobs",
    "Limits",
    "Llm",
    "Log",
    "Metrics",
    "Models",
    "Oidc",
    "Ray",
    "Runner",
    "Sandbox",
    "Section",
    "Serve",
    "Settings",
    "Tools",
    "Trace",
    "Wasm",
    "Web",
    "Webhook",
    "Workspace",
    "default_file",
    "environment",
    "read_indexes",
    "read_settings",
    "secret_values",
]
