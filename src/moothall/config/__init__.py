"""All settings, with secure defaults that work on a laptop.

`MOOTHALL_` environment variables (`__` between levels) override a TOML file (`--config`, or the
user's config.toml), which overrides the defaults. Without a URL, the embedded service is used. A
secret can be in a file, which the setting with the suffix `_file` names, such as
`MOOTHALL_LLM__API_KEY_FILE`. No other package reads the environment.
"""

from __future__ import annotations

from moothall.config.file import Section, default_file, environment, find_default_file
from moothall.config.limits import EvidenceSettings, GuardSettings, LimitSettings
from moothall.config.models import LlmSettings, Models
from moothall.config.services import (
    AgentSettings,
    BusSettings,
    FleetMode,
    ForgeSettings,
    GraphSettings,
    GrpcSettings,
    LogSettings,
    MetricsSettings,
    OidcSettings,
    RaySettings,
    TraceSettings,
    TrackerSettings,
    WebhookSettings,
    WebSettings,
)
from moothall.config.settings import Settings, read_settings, secret_values
from moothall.config.workspace import (
    JobSettings,
    RunnerSettings,
    SandboxSettings,
    WorkspaceSections,
    WorkspaceSettings,
)

__all__ = [
    "AgentSettings",
    "BusSettings",
    "EvidenceSettings",
    "FleetMode",
    "ForgeSettings",
    "GraphSettings",
    "GrpcSettings",
    "GuardSettings",
    "JobSettings",
    "LimitSettings",
    "LlmSettings",
    "LogSettings",
    "MetricsSettings",
    "Models",
    "OidcSettings",
    "RaySettings",
    "RunnerSettings",
    "SandboxSettings",
    "Section",
    "Settings",
    "TraceSettings",
    "TrackerSettings",
    "WebSettings",
    "WebhookSettings",
    "WorkspaceSections",
    "WorkspaceSettings",
    "default_file",
    "environment",
    "find_default_file",
    "read_settings",
    "secret_values",
]
