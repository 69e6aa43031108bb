"""Settings of workspaces, sandboxes, agents, tools and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, Field, SecretStr, model_validator

from moothall.config.jobs import JobSettings
from moothall.config.section import Section


class WorkspaceSettings(Section):
    """Workspaces of tools, and the set-up and checks of repositories."""

    kind: Literal["local", "kubernetes"] = Field(
        "local", description="kubernetes: each workspace is a Job with the settings of `jobs`"
    )
    setup_network: Literal["on", "allowlist", "off"] = Field(
        "allowlist",
        description="network access of a set-up, always through Moothall's proxy; allowlist: "
        "package indexes (the usual ones, and those in the operator's configuration of pip, uv, "
        "npm, Go and Cargo) and setup_hosts; on: also every public address; off: none",
    )
    setup_hosts: tuple[str, ...] = Field(
        (),
        description="hosts (name or name:port) and networks that set-ups may reach in addition "
        "to package indexes, such as github.com",
    )
    setup_seconds: float = Field(600.0, gt=0)
    check_seconds: float = Field(
        600.0,
        gt=0,
        description="maximum duration of one run of a check, also on the untouched base",
    )
    base_seconds: float = Field(
        240.0,
        gt=0,
        description="the same on the untouched base for a command that reports no test cases, "
        "such as make, because a hanging case cannot be identified",
    )
    stopped_seconds: float = Field(
        3600.0,
        ge=0,
        description="how long a timeout of a check on the untouched base is remembered; 0: the "
        "check is always repeated",
    )
    check_factor: float = Field(
        5.0,
        ge=1,
        description="maximum duration of a check or of one case, as a multiple of its duration "
        "on the untouched base",
    )
    check_floor_seconds: float = Field(
        60.0, gt=0, description="minimum time limit of a check, however fast it was on the base"
    )
    case_seconds: float = Field(
        10.0,
        gt=0,
        description="minimum time limit of a test case; three times as much on the base. For a "
        "Go package: six times as much",
    )
    flaky_seconds: float = Field(
        60.0,
        ge=0,
        description="faster checks run twice on the base; cases with different results are flaky",
    )
    max_projects: int = Field(
        20,
        ge=0,
        description="projects in folders of one repository that get a check of their own; 0: "
        "only the root",
    )
    warm: int = Field(
        1, ge=0, description="executors that are kept ready for each prepared repository"
    )
    allowed_schemes: tuple[str, ...] = ("https", "ssh", "file")
    allowed_roots: tuple[Path, ...] = Field(
        (), description="local repositories that the API may use; the CLI adds its own argument"
    )
    keep_days: float = Field(
        14.0,
        ge=1,
        description="`moothall log prune` removes checkouts and environments that were not used "
        "for this long",
    )
    environments: Path | None = Field(
        None,
        description="a folder with file locks that only hosts mount: hosts without a common disk "
        "share there the environments that were set up for the same lock file; those unused for "
        "keep_days are removed; empty: each host sets up its own",
    )
    environments_bytes: int = Field(
        50_000_000_000,
        ge=1_000_000,
        description="maximum size of `environments`; the least recently used ones are removed "
        "first",
    )
    max_submodules: int = Field(
        20, ge=0, description="maximum number of submodules of one repository to fetch; 0: none"
    )
    max_file_bytes: int = Field(
        5_000_000,
        ge=1024,
        description="maximum size of one file in a patch, or of a file that a tool reads",
    )
    max_patch_bytes: int = Field(2_000_000, ge=1024)
    max_repository_bytes: int = Field(4_000_000_000, ge=1_000_000)
    max_patch_files: int = Field(1000, ge=1)
    history_commits: int = Field(
        10_000,
        ge=0,
        description="newest commits that git shows in the shell of a workspace (log, blame, "
        "diff); 0: there is no git",
    )
    git_seconds: float = Field(
        120.0,
        gt=0,
        description="maximum duration of one git command; a fetch or checkout has setup_seconds",
    )


Wall = Literal[
    "processes-hidden",
    "identity",
    "files",
    "network",
    "seccomp",
    "landlock",
    "executor",
    "memory",
    "processes",
    "disk",
]
"""A layer of the sandbox that may be missing. Bubblewrap and overlays are always required."""


class SandboxSettings(Section):
    """Layers and limits for code that a model wrote. A missing layer prevents the start unless
    `allow_degraded` names it.
    """

    allow_degraded: tuple[Wall, ...] = Field(
        (), description="layers that may be missing, named one by one"
    )
    cores: int = Field(
        0,
        ge=0,
        description="concurrent commands on this machine; further ones wait. 0: the cores of its "
        "cgroup plus one",
    )
    cpu_seconds: float = Field(
        120.0, gt=0, description="CPU time of one command; for code.shell: per core"
    )
    wall_seconds: float = Field(
        120.0, gt=0, description="duration of one command; for code.shell: see code.shell_seconds"
    )
    memory_bytes: int = Field(2_000_000_000, ge=64_000_000)
    processes: int = Field(256, ge=8)
    open_files: int = Field(1024, ge=64)
    output_bytes: int = Field(
        200_000, ge=1000, description="output of one command; more is truncated and counted"
    )
    disk_bytes: int = Field(1_000_000_000, ge=1_000_000)
    uid: int = Field(
        64_817, ge=1, description="user id of sandboxes if Moothall itself runs as root"
    )
    toolchains: tuple[Path, ...] = Field(
        (),
        description="folders outside /usr that are visible read-only; their bin folder is added "
        "to PATH",
    )


class CodeSettings(Section):
    """Code and commands that a model wrote, run by `code.shell`. See docs/tools.md."""

    shell_seconds: float = Field(
        600.0,
        gt=0,
        description="maximum timeout_seconds of a command of code.shell; the default is 120",
    )


class AgentSettings(Section):
    """Agents: queries of other orchestrators, and runs of `moothall agents run`."""

    at_once: int = Field(4, ge=1, le=1000, description="concurrent agents of one run of specs")
    file_bytes: int = Field(256_000, ge=1000, description="maximum size of a spec file")
    tasks: int = Field(
        64, ge=1, description="running queries of one tenant; further ones are refused"
    )
    tokens: int = Field(
        100_000,
        ge=100,
        description="approximate size of a query with its history and context; larger ones are "
        "refused",
    )
    calls_a_second: float = Field(
        10.0, gt=0, description="queries that one caller may start per second"
    )
    timeout_seconds: float = Field(
        900.0, gt=0, description="maximum duration of a query, whatever its caller requests"
    )
    breaker_calls: int = Field(
        20,
        ge=1,
        description="last queries of one tenant; if half of them failed, the circuit breaker opens",
    )
    breaker_seconds: float = Field(
        30.0, gt=0, description="the window, and how long an open circuit breaker refuses queries"
    )
    session_seconds: int = Field(
        1800,
        ge=10,
        description="lifetime of a session's workspace since it was opened; then a new one is "
        "opened",
    )
    history: int = Field(
        20,
        ge=0,
        le=200,
        description="newest queries and answers of a session that are stored and sent with the "
        "next query",
    )
    endpoints: dict[str, tuple[str, ...]] = Field(
        {},
        description="remote agents that seats may use: the registered endpoint, and the "
        "HOST:PORTs of its replicas",
    )
    endpoint_token_file: Path | None = Field(None, description="the token that is sent to them")
    endpoint_ca: Path | None = Field(
        None,
        description="the certificate authority of their certificates; default: those of this "
        "machine",
    )
    endpoint_chars: int = Field(
        1_000_000, ge=1000, description="maximum length of one streamed answer of a remote agent"
    )
    endpoint_pause_seconds: float = Field(
        0.5, gt=0, description="delay before the next replica is called; doubles"
    )


class ToolSettings(Section):
    """Sequences of tool calls."""

    parallelism: int = Field(1, ge=1, le=32, description="concurrent calls of one sequence")


class RunnerSettings(Section):
    """Blocks of Python that a model wrote, with tools as functions. See docs/tools.md."""

    enabled: bool = Field(
        default=True, description="off: models are told that Python is not available"
    )
    offer_from_tokens: int = Field(
        16_000,
        ge=0,
        description="minimum window (llm.context_tokens) for which prompts offer Python; small "
        "models need short prompts",
    )
    workers: int = Field(
        2, ge=1, le=64, description="concurrent blocks of one process; further ones wait"
    )
    seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="computing time of a block itself; its tools have limits of their own",
    )
    memory_bytes: int = Field(
        128_000_000,
        ge=16_000_000,
        description="memory of a block; in CPython, sandbox.memory_bytes applies",
    )
    output_bytes: int = Field(
        50_000, ge=1000, description="maximum size of a block's output, and of its value"
    )
    tool_calls: int = Field(
        100, ge=1, description="tool calls of one block, including those of its sub-agents"
    )
    full: bool = Field(
        default=True,
        description="run blocks that the first tier does not support in CPython, in a sandbox of "
        "the workspace's kind",
    )
    full_workers: int = Field(
        4,
        ge=1,
        le=64,
        description="concurrent blocks in CPython, for each depth of agents; further ones wait",
    )
    agents_depth: int = Field(
        1, ge=0, le=4, description="maximum nesting of agents.run; 0: no sub-agents"
    )
    agents_fan_out: int = Field(6, ge=1, le=64, description="sub-agents of one block")
    agents_turns: int = Field(6, ge=1, le=50, description="turns of a sub-agent")


REMOVED_LIMITS = frozenset(
    {
        "counter_proofs",
        "counter_cases",
        "apart_seconds",
        "inputs",
        "inputs_seconds",
        "inputs_tokens",
    }
)
"""Limits of earlier versions. They are ignored if files and environments still contain them."""


class LimitSettings(Section):
    """Limits of requests, deliberations and seats."""

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, data: Any) -> Any:
        return (
            {key: value for key, value in data.items() if key not in REMOVED_LIMITS}
            if isinstance(data, Mapping)
            else data
        )

    agents: int = Field(16, ge=1)
    rounds: int = Field(8, ge=0)
    turns: int = Field(
        100, ge=1, description="turns of a seat; max_iterations of a request lowers it"
    )
    task_chars: int = Field(20_000, ge=100)
    deliberation_seconds: float = Field(1800.0, gt=0)
    tokens: int = Field(5_000_000, ge=0, description="tokens of a deliberation; 0: no limit")
    calls: int = Field(1_000, ge=0)
    cost_usd: float = Field(0.0, ge=0)
    story_tokens: int = Field(
        20_000_000,
        ge=0,
        description="tokens of all deliberations of a story without a budget of its own; 0: no "
        "limit",
    )
    story_calls: int = Field(10_000, ge=0)
    story_cost_usd: float = Field(0.0, ge=0)
    malformed_replies: int = Field(3, ge=0, description="corrective messages before a seat fails")
    attempts: int = Field(
        3,
        ge=1,
        description="attempts of a seat that makes no progress, including the first",
    )
    stuck_turns: int = Field(
        3,
        ge=2,
        description="changes with the same failed tests after which a seat starts a new attempt",
    )
    own_check_seconds: float = Field(
        10.0,
        ge=0,
        description="after each change, a seat runs the whole suite if it took no longer than "
        "this on the base; otherwise only related tests",
    )
    patience: float = Field(
        1.0,
        ge=0,
        description="after a proven answer, the other seats get its duration times this; 0: no "
        "limit",
    )
    patience_seconds: float = Field(10.0, ge=0, description="minimum time that they get")
    second_wave: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if no proposal is reproduced or proven, seats propose once more, based on "
        "notes about the first proposals; auto: with the protocol tournament",
    )
    quorum: float = Field(
        0.5, gt=0, le=1, description="share of seats that is enough to decide at the deadline"
    )
    grace_seconds: float = Field(
        10.0,
        ge=0,
        description="after this time beyond its deadline, a deliberation is decided with the "
        "available answers",
    )
    message_bytes: int = Field(4_000_000, ge=10_000, description="maximum size of a gRPC message")
    agent_chars: int = Field(
        4000, ge=100, description="total length of capabilities and metadata of a registered agent"
    )
    context_tokens: int = Field(
        2000, ge=100, description="size of the context from the graph for a seat or a caller"
    )
    plan_tasks: int = Field(64, ge=1, description="tasks of one plan")
    architects: int = Field(
        default=3,
        ge=0,
        le=100,
        description="seats that divide a story into tasks if `llm.base_url` is set; 0, or "
        "without it: by the roles of its rigor level",
    )
    plans: int = Field(
        32, ge=1, description="plans whose tasks run concurrently; further ones wait"
    )


class EvidenceSettings(Section):
    """Evidence in addition to the tests of the repository.

    The agents need a model with native tool calls and a window of at least 16,000 tokens.
    """

    test_writer: bool = Field(
        default=True,
        description="if no answer is proven, an agent that sees no answer writes tests from the "
        "task; they run on all answers",
    )
    tie_breaker: bool = Field(
        default=True,
        description="if tests rank different answers equally, an agent compares them and writes "
        "a test that distinguishes them",
    )
    review_tools: bool = Field(
        default=True,
        description="reviewers get a workspace with the answer and a shell; off: they see only "
        "its diff",
    )
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the cases that fail on the base, if there are at least four, that "
        "is hidden from seats and runs on every answer; in whole test files",
    )


class GuardSettings(Section):
    """Limits, policy and audit of the tool gateway, and tool sessions of external callers."""

    calls_in_flight: int = Field(
        32, ge=1, description="concurrent tool calls of one gateway; further ones wait"
    )
    seat_in_flight: int = Field(
        4, ge=1, description="concurrent tool calls of one seat; further ones are refused"
    )
    seat_calls: int = Field(400, ge=1, description="tool calls of one seat")
    seat_seconds: float = Field(1200.0, gt=0, description="total running time of one seat's tools")
    call_seconds: float = Field(
        600.0,
        gt=0,
        description="maximum duration of one tool call; a tool's own limit may be lower",
    )
    grace_seconds: float = Field(
        8.0,
        ge=0,
        description="how long a workspace may take to end a call itself after its deadline",
    )
    argument_bytes: int = Field(
        1_000_000, ge=1000, description="size of the arguments of one call, as JSON"
    )
    result_bytes: int = Field(
        60_000, ge=1000, description="output of a call that the seat gets; more is truncated"
    )
    event_bytes: int = Field(
        16_000, ge=1000, description="output of a call in its event; more is truncated"
    )
    key: SecretStr | None = Field(
        None,
        description="signs capability tokens; the same on every machine; empty: a key in the "
        "data directory is created",
    )
    key_file: Path | None = None
    token_seconds: float = Field(
        3600.0, ge=10, description="maximum lifetime of a capability token"
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
    policy_token_file: Path | None = None
    policy_seconds: float = Field(
        1.0,
        gt=0,
        description="how long the OPA server may take for one decision; a timeout is a deny",
    )
    policy_cache_seconds: float = Field(
        60.0, ge=0, description="how long a policy decision is cached"
    )
    visits: int = Field(
        32, ge=1, description="workspaces that external callers may have open at a time"
    )
    tenant_visits: int | None = Field(
        None,
        ge=1,
        description="how many of guard.visits one tenant may have open; default: three quarters",
    )
    approval_seconds: float = Field(
        900.0, ge=1, description="how long an operator's approval of a parked request is valid"
    )
    breaker_failures: int = Field(
        5, ge=1, description="consecutive failures of a tool that open its circuit breaker"
    )
    breaker_seconds: float = Field(
        30.0,
        gt=0,
        description="how long the circuit breaker stays open; doubles while the tool keeps failing",
    )
    alert_denials: int = Field(
        20,
        ge=1,
        description="denied calls of one principal or task within alert_seconds that raise an "
        "alert",
    )
    alert_escapes: int = Field(
        3,
        ge=1,
        description="attempts of one principal or task to escape a sandbox within alert_seconds "
        "that raise an alert",
    )
    alert_seconds: float = Field(60.0, gt=0)


class WasmSettings(Section):
    """The operator's tools as WebAssembly modules; see docs/tools.md. The file of a tool may lower
    its time limit, but not raise any limit.
    """

    folder: Path | None = Field(
        None, description="contains name.wasm and name.yaml of each tool; empty: there are none"
    )
    fuel: int = Field(
        10_000_000_000, ge=1000, description="approximate number of instructions of one run"
    )
    memory_bytes: int = Field(256_000_000, ge=65_536, description="linear memory of one run")
    instances: int = Field(
        4, ge=1, description="maximum number of instances, of tables and of memories of one run"
    )
    module_bytes: int = Field(
        20_000_000, ge=8, description="size of a module's file; a larger one prevents the start"
    )


class WorkspaceSections(BaseModel):
    """The settings that the package `workspace` gets."""

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("moothall")))
    workspace: WorkspaceSettings = WorkspaceSettings()
    jobs: JobSettings = JobSettings()
    sandbox: SandboxSettings = SandboxSettings()
    code: CodeSettings = CodeSettings()
    runner: RunnerSettings = RunnerSettings()
    wasm: WasmSettings = WasmSettings()
