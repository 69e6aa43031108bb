"""Limits of deliberations, their evidence and tool calls, and quotas of tenants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from moothall.config.file import Section

# Limits of deliberations, their evidence, and tool calls.


class LimitSettings(Section):
    """Limits of requests, deliberations and seats."""

    agents: int = Field(16, ge=1, description="maximum number of seats of a council")
    turns: int = Field(
        100, ge=1, description="turns of a seat; max_iterations of a request lowers it"
    )
    deliberation_seconds: float = Field(
        1800.0, gt=0, description="maximum duration of a deliberation; requests may set a lower one"
    )
    tokens: int = Field(5_000_000, ge=0, description="tokens of a deliberation; 0: no limit")
    calls: int = Field(1_000, ge=0, description="model calls of a deliberation; 0: no limit")
    cost_usd: float = Field(
        0.0,
        ge=0,
        description="cost of a deliberation in US dollars, at the prices of its models; 0: no "
        "limit",
    )
    story_tokens: int = Field(
        20_000_000,
        ge=0,
        description="tokens of all deliberations of a story without a budget of its own; 0: no "
        "limit",
    )
    story_cost_usd: float = Field(
        0.0, ge=0, description="cost of all deliberations of a story in US dollars; 0: no limit"
    )
    patience: float = Field(
        1.0,
        ge=0,
        description="after a proven answer, the other seats get its duration times this; 0: no "
        "limit",
    )
    second_wave: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if no proposal is reproduced or proven, seats propose once more, based on "
        "notes about the first proposals; auto: with the protocol tournament",
    )
    context_tokens: int = Field(
        2000, ge=100, description="size of the context from the graph for a seat or a caller"
    )


EvidenceAgent = Literal["test-writer", "tie-breaker", "reviewers"]
"""An agent that gathers evidence with a shell."""


class EvidenceSettings(Section):
    """Evidence in addition to the tests of the repository.

    The agents need a model with native tool calls and a window of at least 16,000 tokens.
    """

    agents: tuple[EvidenceAgent, ...] = Field(
        ("test-writer", "tie-breaker", "reviewers"),
        description="test-writer: if no answer is proven, an agent that sees no answer writes "
        "tests from the task, which run on all answers; tie-breaker: if tests rank different "
        "answers equally, an agent compares them and writes a test that distinguishes them; "
        "reviewers: reviewers get a workspace with the answer and a shell, and otherwise see only "
        "its diff",
    )
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the cases that fail on the base, if there are at least four, that "
        "is hidden from seats and runs on every answer; in whole test files",
    )


class ToolSettings(Section):
    """Sequences of tool calls."""

    parallelism: int = Field(1, ge=1, le=32, description="concurrent calls of one sequence")


class GuardSettings(Section):
    """Limits, policy and audit of the tool gateway, and tool sessions of external callers."""

    seat_calls: int = Field(
        400, ge=1, description="tool calls of one seat, or of one tool session of a caller"
    )
    key: SecretStr | None = Field(
        None,
        description="signs capability tokens; the same on every machine; empty: a key in the "
        "data directory is created",
    )
    policies: Path | None = Field(
        None,
        description="a folder with roles.yaml and *.rego that replaces the policies included in "
        "Moothall; see docs/tools.md",
    )
    policy: Literal["off", "dry-run", "enforce"] = Field(
        "enforce",
        description="effect of the policy's decisions; dry-run: they are only logged and counted",
    )
    policy_url: str | None = Field(
        None,
        pattern="^https?://",
        description="root of an OPA server that replaces the *.rego of guard.policies",
    )
    policy_token: SecretStr | None = Field(None, description="bearer token for the OPA server")
    audit_days: int | None = Field(
        None,
        ge=1,
        description="how long audit records are kept; empty: forever. Older ones are removed from "
        "the files daily, and from the AUDIT stream by `moothall log prune`",
    )
    audit_exporter: Literal["off", "otlp"] = Field(
        "off",
        description="otlp: each audit record is sent as an OpenTelemetry log record to "
        "trace.endpoint",
    )


# Quotas of tenants.


_Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class Quota(Section):
    """The quotas of one tenant; 0: no limit. Days and months are those of UTC."""

    tokens_per_day: int = Field(0, ge=0, description="tokens of all model calls in a day")
    tokens_per_month: int = Field(0, ge=0, description="tokens of all model calls in a month")
    cost_usd_per_day: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="cost of all model calls in a day"
    )
    cost_usd_per_month: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="cost of all model calls in a month"
    )
    deliberations: int = Field(
        0, ge=0, description="accepted deliberations that have not ended, including waiting ones"
    )


class QuotaSettings(Section):
    """Quotas of tenants: docs/operating.md."""

    default: Quota = Field(Quota(), description="quotas of tenants that `tenants` does not name")
    tenants: Mapping[_Tenant, Quota] = Field(
        {}, description="quotas by tenant; unset values are inherited from `default`"
    )

    def of(self, tenant: str) -> Quota:
        """Return the quotas of a tenant."""
        own_quota = self.tenants.get(tenant, Quota())
        return self.default.model_copy(
            update={name: getattr(own_quota, name) for name in own_quota.model_fields_set}
        )
