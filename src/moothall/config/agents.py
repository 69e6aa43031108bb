"""Where agents act, what holds them, and what they may do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, Field, SecretStr, model_validator

from moothall.config.jobs import JobSettings
from moothall.config.section import Section


class WorkspaceSettings(Section):
    """Where tools act."""

    kind: Literal["local", "kubernetes"] = Field(
        "local", description="kubernetes: each in a Job, as `jobs` says"
    )
    setup_network: Literal["on", "allowlist", "off"] = Field(
        "allowlist",
        description="where a set-up may go, always through our proxy; allowlist: package indexes "
        "(the usual ones, those that the operator's own pip, uv, npm, Go and Cargo are set to) and "
        "setup_hosts; on: every public address too; off: nowhere",
    )
    setup_hosts: tuple[str, ...] = Field(
        (),
        description="hosts (name or name:port) and networks that set-ups may reach beside the "
        "package indexes, as github.com",
    )
    setup_seconds: float = Field(600.0, gt=0)
    check_seconds: float = Field(
        600.0, gt=0, description="one run of a check at most, that on the untouched base too"
    )
    base_seconds: float = Field(
        240.0,
        gt=0,
        description="the same on the untouched base, for a command that tells no cases, as make: "
        "what hangs is not told",
    )
    stopped_seconds: float = Field(
        3600.0,
        ge=0,
        description="how long it is remembered that a check hit its limit on the untouched base; "
        "0: it is run again",
    )
    check_factor: float = Field(
        5.0,
        ge=1,
        description="how many times as long as on the untouched base a check, or one case of it, "
        "may take",
    )
    check_floor_seconds: float = Field(
        60.0, gt=0, description="what a check gets at least, however fast it was on the base"
    )
    case_seconds: float = Field(
        10.0,
        gt=0,
        description="what a test case gets at least; on the base three times that. Its package in "
        "Go: six times that",
    )
    flaky_seconds: float = Field(
        60.0,
        ge=0,
        description="checks that take less are run twice on the base; what differs is flaky",
    )
    max_projects: int = Field(
        20,
        ge=0,
        description="projects in folders of one repository that get a check of their own; 0: the "
        "root's alone",
    )
    warm: int = Field(1, ge=0, description="executors kept ready for each prepared repository")
    allowed_schemes: tuple[str, ...] = ("https", "ssh", "file")
    allowed_roots: tuple[Path, ...] = Field(
        (), description="local repositories that the API may name; the CLI adds its own argument"
    )
    keep_days: float = Field(
        14.0,
        ge=1,
        description="`moothall log prune` removes checkouts and environments that were not used "
        "for so long",
    )
    environments: Path | None = Field(
        None,
        description="a folder that hosts on different disks mount, and nobody else (file locks "
        "work there): what one has set up for a lock file the others take from it; what was not "
        "used for keep_days goes; empty: each sets up itself",
    )
    environments_bytes: int = Field(
        50_000_000_000,
        ge=1_000_000,
        description="of all in `environments`; what was not used for longest goes first",
    )
    max_submodules: int = Field(
        20, ge=0, description="submodules of one repository that are fetched; 0: none"
    )
    max_file_bytes: int = Field(
        5_000_000, ge=1024, description="one file of a patch, or read by a tool"
    )
    max_patch_bytes: int = Field(2_000_000, ge=1024)
    max_repository_bytes: int = Field(4_000_000_000, ge=1_000_000)
    max_patch_files: int = Field(1000, ge=1)
    history_commits: int = Field(
        10_000,
        ge=0,
        description="the newest commits that git in the shell of a workspace shows (log, blame, "
        "diff); 0: there is no git",
    )
    git_seconds: float = Field(
        120.0, gt=0, description="one git command; a fetch or checkout has setup_seconds"
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
"""The walls of a sandbox that an operator may do without; without bubblewrap and overlays there is
none.
"""


class SandboxSettings(Section):
    """Walls and limits for what a model wrote. A missing wall stops the start unless named here."""

    allow_degraded: tuple[Wall, ...] = Field(
        (), description="walls to do without where they are missing, named one by one"
    )
    cores: int = Field(
        0,
        ge=0,
        description="commands that run at a time on this machine; further ones wait. 0: the cores "
        "of its cgroup plus one",
    )
    cpu_seconds: float = Field(
        120.0, gt=0, description="one command; of code.shell: its time on every core"
    )
    wall_seconds: float = Field(
        120.0, gt=0, description="one command; of code.shell: see code.shell_seconds"
    )
    memory_bytes: int = Field(2_000_000_000, ge=64_000_000)
    processes: int = Field(256, ge=8)
    open_files: int = Field(1024, ge=64)
    output_bytes: int = Field(200_000, ge=1000, description="of a command; more is cut and counted")
    disk_bytes: int = Field(1_000_000_000, ge=1_000_000)
    uid: int = Field(
        64_817, ge=1, description="whom a sandbox runs as where Moothall itself runs as root"
    )
    toolchains: tuple[Path, ...] = Field(
        (), description="folders outside /usr to show read-only; their bin is put on PATH"
    )


class CodeSettings(Section):
    """Code and commands that a model wrote, as `code.shell` runs them. See docs/tools.md."""

    shell_seconds: float = Field(
        600.0,
        gt=0,
        description="the most that a command of code.shell may ask for with timeout_seconds; "
        "without, it gets 120",
    )


class AgentSettings(Section):
    """Agents: what other orchestrators ask of one, and those that `moothall agents run` runs."""

    at_once: int = Field(
        4, ge=1, le=1000, description="agents of specs that one run has at work side by side"
    )
    file_bytes: int = Field(256_000, ge=1000, description="of one file of a spec")
    tasks: int = Field(
        64, ge=1, description="running queries of one tenant; further ones are refused"
    )
    tokens: int = Field(
        100_000,
        ge=100,
        description="of a query with its history and context, about; a longer one is refused",
    )
    calls_a_second: float = Field(
        10.0, gt=0, description="queries that one caller may begin a second"
    )
    timeout_seconds: float = Field(
        900.0, gt=0, description="the longest that a query may take, whatever its caller says"
    )
    breaker_calls: int = Field(
        20,
        ge=1,
        description="last queries of one tenant of which half have to fail to open the breaker",
    )
    breaker_seconds: float = Field(
        30.0, gt=0, description="the window, and how long none is let through"
    )
    session_seconds: int = Field(
        1800, ge=10, description="a session's workspace, from its last opening; then it begins anew"
    )
    history: int = Field(
        20,
        ge=0,
        le=200,
        description="queries and answers of a session that are kept and told, the newest",
    )
    endpoints: dict[str, tuple[str, ...]] = Field(
        {},
        description="remote agents that seats may be asked of: the endpoint as it is registered, "
        "and the HOST:PORTs of its replicas",
    )
    endpoint_token_file: Path | None = Field(None, description="the token that is sent to them")
    endpoint_ca: Path | None = Field(
        None, description="the authority of their certificates; this machine's own by default"
    )
    endpoint_chars: int = Field(
        1_000_000, ge=1000, description="that one of them may stream for one answer"
    )
    endpoint_pause_seconds: float = Field(
        0.5, gt=0, description="before another replica is asked; it doubles"
    )


class ToolSettings(Section):
    """Tools that a caller asks for several of at once."""

    parallelism: int = Field(
        1, ge=1, le=32, description="calls of one sequence that run side by side"
    )


class RunnerSettings(Section):
    """Blocks of Python that a model wrote, with tools as functions. See docs/tools.md."""

    enabled: bool = Field(default=True, description="off: a model is told that there is no Python")
    offer_from_tokens: int = Field(
        16_000,
        ge=0,
        description="windows (llm.context_tokens) from which on prompts offer Python; small models "
        "need short ones",
    )
    workers: int = Field(
        2, ge=1, le=64, description="blocks that one process runs side by side; more wait"
    )
    seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="what a block itself may compute; its tools have their own limits",
    )
    memory_bytes: int = Field(
        128_000_000, ge=16_000_000, description="of a block; in CPython sandbox.memory_bytes holds"
    )
    output_bytes: int = Field(
        50_000, ge=1000, description="what a block may print, and how large its value may be"
    )
    tool_calls: int = Field(
        100, ge=1, description="tool calls of one block, those of its sub-agents included"
    )
    full: bool = Field(
        default=True,
        description="run what the first tier cannot in CPython, in a sandbox of the workspace's "
        "kind",
    )
    full_workers: int = Field(
        4,
        ge=1,
        le=64,
        description="blocks that run in CPython side by side, for each depth of agents; more wait",
    )
    agents_depth: int = Field(
        1, ge=0, le=4, description="how deep agents.run may stand in itself; 0: no sub-agents"
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
"""Limits of earlier versions, which files and environments may still name: they are ignored."""


class LimitSettings(Section):
    """What a caller may ask for."""

    @model_validator(mode="before")
    @classmethod
    def _drop_removed(cls, given: Any) -> Any:
        return (
            {key: value for key, value in given.items() if key not in REMOVED_LIMITS}
            if isinstance(given, Mapping)
            else given
        )

    agents: int = Field(16, ge=1)
    rounds: int = Field(8, ge=0)
    turns: int = Field(
        100, ge=1, description="turns of a seat; the wire's max_iterations lowers it"
    )
    task_chars: int = Field(20_000, ge=100)
    deliberation_seconds: float = Field(1800.0, gt=0)
    tokens: int = Field(5_000_000, ge=0, description="of a deliberation; 0: no limit")
    calls: int = Field(1_000, ge=0)
    cost_usd: float = Field(0.0, ge=0)
    story_tokens: int = Field(
        20_000_000,
        ge=0,
        description="of all deliberations of a story that names no budget of its own; 0: no limit",
    )
    story_calls: int = Field(10_000, ge=0)
    story_cost_usd: float = Field(0.0, ge=0)
    malformed_replies: int = Field(3, ge=0, description="corrective messages before a seat fails")
    attempts: int = Field(
        3,
        ge=1,
        description="how often a seat that goes in circles starts anew, the first time included",
    )
    stuck_turns: int = Field(
        3, ge=2, description="changes after which the same tests are red, and the seat starts anew"
    )
    own_check_seconds: float = Field(
        10.0,
        ge=0,
        description="a seat runs a suite that took no longer on the base whole after each change; "
        "of a slower one what is near it",
    )
    patience: float = Field(
        1.0,
        ge=0,
        description="after a proven answer the other seats get its time again, times this; 0: all "
        "the time",
    )
    patience_seconds: float = Field(10.0, ge=0, description="and at least this long")
    second_wave: Literal["auto", "on", "off"] = Field(
        "auto",
        description="if no proposal is reproduced or proven, seats propose once more, on notes "
        "about the first proposals; auto: with the protocol tournament",
    )
    quorum: float = Field(
        0.5, gt=0, le=1, description="share of seats that decides at the deadline"
    )
    grace_seconds: float = Field(
        10.0, ge=0, description="after its deadline a deliberation is decided with what there is"
    )
    message_bytes: int = Field(4_000_000, ge=10_000, description="one gRPC message")
    agent_chars: int = Field(
        4000, ge=100, description="capabilities and metadata of a registered agent, together"
    )
    context_tokens: int = Field(
        2000, ge=100, description="excerpt of the graph that a seat or a caller is given"
    )
    plan_tasks: int = Field(64, ge=1, description="tasks of one plan")
    architects: int = Field(
        default=3,
        ge=0,
        le=100,
        description="Seats that divide a story into tasks, where `llm.base_url` names a model; 0, "
        "and without one: by its rigor level's roles.",
    )
    plans: int = Field(
        32, ge=1, description="plans whose tasks are handed out side by side; more wait"
    )


class EvidenceSettings(Section):
    """Evidence beside the tests of the repository.

    The agents need a model with native tools and a window of 16,000 tokens or more.
    """

    test_writer: bool = Field(
        default=True,
        description="if no answer is proven, an agent that sees no answer writes tests from the "
        "task; they run on all answers",
    )
    tie_breaker: bool = Field(
        default=True,
        description="if tests leave different answers level, an agent compares them and writes a "
        "test that tells them apart",
    )
    review_tools: bool = Field(
        default=True,
        description="reviewers get a workspace with the answer and a shell; off: they see its diff "
        "alone",
    )
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the cases failing on the base, if at least four do, that is hidden "
        "from seats and runs on every answer; whole test files",
    )


class GuardSettings(Section):
    """What the gateway lets through."""

    calls_in_flight: int = Field(
        32, ge=1, description="tool calls that one gate runs side by side; more wait"
    )
    seat_in_flight: int = Field(
        4, ge=1, description="tool calls of one seat side by side; more are refused"
    )
    seat_calls: int = Field(400, ge=1, description="tool calls of one seat")
    seat_seconds: float = Field(
        1200.0, gt=0, description="seconds that one seat's tools may run, together"
    )
    call_seconds: float = Field(
        600.0, gt=0, description="one tool call; a tool's own limit may be lower"
    )
    grace_seconds: float = Field(
        8.0, ge=0, description="what a workspace gets to end a call by itself after its deadline"
    )
    argument_bytes: int = Field(1_000_000, ge=1000, description="arguments of one call, as JSON")
    result_bytes: int = Field(
        60_000, ge=1000, description="output of a call that the seat sees; more is cut"
    )
    event_bytes: int = Field(
        16_000, ge=1000, description="output of a call in its event; more is cut"
    )
    key: SecretStr | None = Field(
        None,
        description="signs capability tokens, the same on every machine; empty: made in the data "
        "directory",
    )
    key_file: Path | None = None
    token_seconds: float = Field(
        3600.0, ge=10, description="the longest that a capability token lives"
    )
    policies: Path | None = Field(
        None,
        description="a folder with roles.yaml and *.rego instead of those that come with Moothall; "
        "see docs/tools.md",
    )
    policy: Literal["off", "dry-run", "enforce"] = Field(
        "enforce",
        description="what becomes of the policy's answers; dry-run: they are only logged and "
        "counted",
    )
    policy_url: str | None = Field(
        None,
        pattern="^https?://",
        description="root of an OPA server that is asked instead of the *.rego of guard.policies",
    )
    policy_token: SecretStr | None = Field(
        None, description="bearer token that the OPA server wants"
    )
    policy_token_file: Path | None = None
    policy_seconds: float = Field(
        1.0, gt=0, description="what the OPA server gets for one answer; none in time is a no"
    )
    policy_cache_seconds: float = Field(
        60.0, ge=0, description="how long a policy's answer to the same question stands"
    )
    visits: int = Field(
        32, ge=1, description="workspaces that external callers have open at a time"
    )
    tenant_visits: int | None = Field(
        None,
        ge=1,
        description="how many of guard.visits one tenant may have open; three quarters if not set",
    )
    approval_seconds: float = Field(
        900.0, ge=1, description="how long an operator's approval of a parked request is good for"
    )
    breaker_failures: int = Field(
        5, ge=1, description="failures of a tool in a row that open its circuit"
    )
    breaker_seconds: float = Field(
        30.0, gt=0, description="how long it then rests; doubles while it keeps failing"
    )
    alert_denials: int = Field(
        20,
        ge=1,
        description="refused calls of one principal or task within alert_seconds that raise an "
        "alert",
    )
    alert_escapes: int = Field(
        3, ge=1, description="attempts of one to escape a sandbox within alert_seconds that do"
    )
    alert_seconds: float = Field(60.0, gt=0)


class WasmSettings(Section):
    """Tools of an operator's own, as WebAssembly modules; see docs/tools.md. A tool's own file may
    give it less time, never more of anything.
    """

    folder: Path | None = Field(
        None, description="name.wasm and name.yaml of each tool; empty: there are none"
    )
    fuel: int = Field(10_000_000_000, ge=1000, description="instructions of one run, roughly")
    memory_bytes: int = Field(256_000_000, ge=65_536, description="linear memory of one run")
    instances: int = Field(4, ge=1, description="instances, tables and memories of one run, each")
    module_bytes: int = Field(
        20_000_000, ge=8, description="a module's file; a larger one stops the start"
    )


class WorkspaceSections(BaseModel):
    """What workspaces are made by: all that the room `workspace` is given of the settings."""

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("moothall")))
    workspace: WorkspaceSettings = WorkspaceSettings()
    jobs: JobSettings = JobSettings()
    sandbox: SandboxSettings = SandboxSettings()
    code: CodeSettings = CodeSettings()
    runner: RunnerSettings = RunnerSettings()
    wasm: WasmSettings = WasmSettings()
