"""The configuration file and the environment: the base class of sections, locations of settings
in the file, and errors for names that are not settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import platformdirs
from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

from moothall.errors import ConfigurationError

# The base class of all sections of the settings.


class Section(BaseModel):
    """A frozen section of the settings without unknown keys. Each secret `name` can also be in a
    file, whose path is the key `name_file`.

    Validators are built when settings are read: once for all sections, instead of one by one when
    the classes are imported.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, data: Any) -> Any:
        """Replace the key of a file by the secret in it, unless the secret itself is set."""
        if not isinstance(data, dict):
            return data
        values = dict(data)
        for name in secret_fields(cls):
            key = f"{name}_file"
            path = values.get(key) if key in cls.model_fields else values.pop(key, None)
            if path and not values.get(name):
                values[name] = _read_secret(key, Path(path))
        return values


def secret_fields(model: type[BaseModel]) -> Iterator[str]:
    """Yield the names of the fields that are secret."""
    for name, field in model.model_fields.items():
        if SecretStr in (field.annotation, *get_args(field.annotation)):
            yield name


def _read_secret(name: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{name} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} {path} is not text") from error
    if not secret:
        raise ValueError(f"{name} {path} is empty")
    return secret


# Error messages for names that are not settings, among them those that earlier versions had.


REMOVED: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "limits.counter_proofs",
            "limits.counter_cases",
            "limits.apart_seconds",
            "limits.inputs",
            "limits.inputs_seconds",
            "limits.inputs_tokens",
        ),
        "the checks that it limited no longer exist",
    ),
    **dict.fromkeys(
        (
            "workspace.setup_bytes",
            "runner.kept_bytes",
            "runner.agents_at_once",
            "runner.recursion",
            "wasm.table_elements",
            "limits.text_turns",
            "limits.map_files",
            "limits.map_bytes",
            "limits.map_seconds",
            "limits.coach_seconds",
            "limits.steer_chars",
            "guard.visit_result_bytes",
            "guard.visit_seconds",
            "guard.workflow_steps",
            "guard.workflow_attempts",
            "guard.workflow_parallelism",
            "guard.cache_bytes",
            "guard.audit_sync_records",
            "agents.answer_chars",
            "agents.stream_buffer",
            "agents.breaker_share",
            "grpc.keepalive_seconds",
            "web.head_bytes",
            "web.sessions",
            "web.link_seconds",
            "graph.drain_seconds",
        ),
        "its former default always applies",
    ),
    "workspace.namespace": "use workspaces.namespace of the chart",
    "workspace.image": "use jobs.images",
    "web.head_seconds": "it is always 20 seconds",
    "web.stall_seconds": "it is always 60 seconds",
    "web.body_seconds": "it is always 30 seconds",
    "web.body_bytes": "it is always 4,000,000 bytes",
    "limits.message_bytes": "it is always 4,000,000 bytes",
    "web.grace_seconds": "grpc.grace_seconds applies to HTTP too",
    "forge.call_seconds": "it is always 30 seconds",
    "oidc.seconds": "it is always 10 seconds",
    "webhook.seconds": "it is always 10 seconds",
    "guard.policy_cache_seconds": "it is always 60 seconds",
    "agents.breaker_seconds": "it is always 30 seconds",
    "agents.endpoint_pause_seconds": "it is always 0.5 seconds",
    "serve.lease_seconds": "it is always 6 seconds",
    "webhook.tries": "it is always 8",
    "agents.breaker_calls": "it is always 20",
    "agents.file_bytes": "it is always 256,000 bytes",
    "agents.endpoint_chars": "it is always 1,000,000 characters",
    "guard.calls_in_flight": "it is always 32",
    "guard.seat_in_flight": "it is always 4",
    "guard.breaker_failures": "it is always 5",
    "guard.alert_denials": "it is always 20",
    "guard.alert_escapes": "it is always 3",
    "guard.grace_seconds": "it is always 8 seconds",
    "guard.alert_seconds": "it is always 60 seconds",
    "guard.argument_bytes": "it is always 1,000,000 bytes",
    "guard.result_bytes": "it is always 60,000 bytes",
    "guard.event_bytes": "it is always 16,000 bytes",
    "graph.connect_seconds": "it is always 5 seconds",
    "graph.retry_seconds": "it is always 15 seconds",
    "trace.delay_seconds": "it is always 2 seconds",
    "trace.timeout_seconds": "it is always 3 seconds",
    "metrics.report_seconds": "it is always 5 seconds",
    "graph.batch": "it is always 2,000",
    "trace.queue_spans": "it is always 8,192",
    "http.redirects": "it is always 5",
    "trace.attribute_chars": "it is always 2,000 characters",
    "browser.actions": "it is always 20",
    "browser.processes": "it is always 400",
    "docker.built": "it is always 4",
    "mcp.at_once": "it is always 4",
    "browser.text_chars": "it is always 20,000 characters",
    "browser.screenshot_bytes": "it is always 5,000,000 bytes",
    "docker.output_bytes": "it is always 30,000 bytes",
    "mcp.schema_bytes": "it is always 20,000 bytes",
    "mcp.result_bytes": "it is always 50,000 bytes",
    "db.result_bytes": "it is always 50,000 bytes",
    "workspace.check_factor": "it is always 5",
    "workspace.max_patch_files": "it is always 1,000",
    "workspace.stopped_seconds": "it is always 3,600 seconds",
    "limits.quorum": "it is always 0.5",
    "limits.stuck_turns": "it is always 3",
    "limits.plan_tasks": "it is always 64",
    "limits.grace_seconds": "it is always 10 seconds",
    "limits.own_check_seconds": "it is always 10 seconds",
    "llm.connect_seconds": "it is always 5 seconds",
    "bus.check_seconds": "it is always 3,600 seconds",
    "limits.agent_chars": "it is always 4,000 characters",
    "runner.offer_from_tokens": "it is always 16,000 tokens",
    "llm.function_tokens": "it is always 512 tokens",
    "wasm.module_bytes": "it is always 20,000,000 bytes",
    "llm.local_threads": "all cores but one are used",
    "bus.blob_bytes": "it is always 256,000 bytes",
    "bus.max_deliver": "it is always 5",
    "bus.in_flight": "it is always 1,024",
    "bus.retry_seconds": "it is always 0.5 seconds",
    "bus.publish_seconds": "it is always 30 seconds",
    "oidc.sign_in_seconds": "it is always 600 seconds",
    "llm.retry_seconds": "it is always 0.5 seconds",
    "llm.max_reply_bytes": "it is always 4,000,000 bytes",
    "http.response_bytes": "it is always 1,000,000 bytes",
    "http.download_bytes": "it is always 5,000,000 bytes",
    "browser.action_seconds": "it is always 15 seconds",
    "browser.transfer_bytes": "it is always 30,000,000 bytes",
    "db.receive_bytes": "it is always 8,000,000 bytes",
    "docker.ttl_seconds": "it is always 1,800 seconds",
    "docker.containers": "it is always 4",
    "docker.processes": "it is always 128",
    "docker.scratch_bytes": "it is always 64,000,000 bytes",
    "docker.context_files": "it is always 500",
    "docker.context_bytes": "it is always 20,000,000 bytes",
    "mcp.tools": "it is always 100",
    "mcp.receive_bytes": "it is always 8,000,000 bytes",
    "guard.call_seconds": "it is always 600 seconds",
    "guard.token_seconds": "it is always 3,600 seconds",
    "guard.seat_seconds": "it is always 1,200 seconds",
    "guard.approval_seconds": "it is always 900 seconds",
    "guard.tenant_visits": "a tenant may have 24 open workspaces",
    "guard.visits": "callers may have 32 open workspaces",
    "docker.memory_bytes": "it is always 512,000,000 bytes",
    "jobs.start_seconds": "it is always 120 seconds",
    "forge.at_once": "it is always 2",
    "bus.batch_seconds": "it is always 0.01 seconds",
    "agents.tokens": "it is always 100,000 tokens",
    "agents.history": "it is always 20",
    "agents.session_seconds": "it is always 1,800 seconds",
    "web.readers": "it is always 2,000",
    "web.connections": "it is always 4,096",
    "web.keep_seconds": "it is always 75 seconds",
    "graph.text_chars": "it is always 2,000 characters",
    "graph.query_seconds": "it is always 30 seconds",
    "workspace.flaky_seconds": "it is always 60 seconds",
    "workspace.max_projects": "it is always 20",
    "sandbox.open_files": "it is always 1,024",
    "sandbox.uid": "it is always 64,817",
    "runner.output_bytes": "it is always 50,000 bytes",
    "limits.task_chars": "it is always 20,000 characters",
    "limits.plans": "it is always 32",
    "ray.dashboard": "start a Ray cluster with a dashboard and set ray.address",
    "runner.agents_depth": "it is always 1",
    "runner.agents_fan_out": "it is always 6",
    "runner.agents_turns": "it is always 6",
    "limits.malformed_replies": "it is always 3",
    "limits.patience_seconds": "it is always 10 seconds",
    "llm.priority": "it is always auto",
    "llm.logprobs": "it is always auto",
    "llm.function_attempts": "it is always 2",
    "llm.local_slots": "it is always 3",
    "agents.at_once": "use the option --at-once of moothall agents run",
    "runner.full_workers": "it is always 4",
    "wasm.instances": "it is always 4",
    "guard.breaker_seconds": "it is always 30 seconds",
    "workspace.max_patch_bytes": "it is always 2,000,000 bytes",
    "jobs.orphan_seconds": "it is always 60 seconds",
    "jobs.ttl_seconds": "it is always 60 seconds",
    "guard.policy_seconds": "it is always 1 second",
    "limits.rounds": "it is always 8",
    "llm.provider": "it is openai-compatible, or llama.cpp for the local model",
    "llm.cache_salt": "it is always auto",
    "oidc.tenant": "users without oidc.tenant_claim have the tenant local",
    "trace.service": "it is always moothall",
    "runner.seconds": "it is always 10 seconds",
    "runner.memory_bytes": "it is always 128,000,000 bytes",
    "runner.tool_calls": "it is always 100",
    "limits.architects": "it is always 3",
    "http.seconds": "it is always 30 seconds",
    "browser.seconds": "it is always 60 seconds",
    "browser.at_once": "it is always 2",
    "browser.memory_bytes": "it is always 1,500,000,000 bytes",
    "docker.seconds": "it is always 120 seconds",
    "docker.user": "it is always 65534:65534",
    "docker.cpus": "it is always 1",
    "db.seconds": "it is always 15 seconds",
    "db.rows": "it is always 500",
    "llm.price_reasoning": "llm.price_out applies",
    "llm.idle_seconds": "it is a sixth of llm.call_seconds",
    "llm.function_turns": "it is always 1",
    "limits.attempts": "it is always 3",
    "web.session_seconds": "it is always 12 hours",
    "code": "workspace.check_seconds applies instead of code.shell_seconds",
    "code.shell_seconds": "workspace.check_seconds applies",
    "evidence.test_writer": "use evidence.agents",
    "evidence.tie_breaker": "use evidence.agents",
    "evidence.review_tools": "use evidence.agents",
    "workspace.base_seconds": "it is four times workspace.check_floor_seconds",
    "workspace.case_seconds": "it is a sixth of workspace.check_floor_seconds",
    "workspace.max_submodules": "it is always 20",
    "workspace.history_commits": "it is always 10,000",
    "workspace.git_seconds": "it is always 120 seconds",
    "workspace.setup_seconds": "workspace.check_seconds applies",
    "workspace.max_file_bytes": "it is always 5,000,000 bytes",
    "workspace.environments_bytes": "it is always 50 GB, but at most 80% of the disk",
    "sandbox.output_bytes": "it is always 200,000 bytes",
    "wasm.fuel": "it is always 10,000,000,000",
    "wasm.memory_bytes": "it is always 256,000,000 bytes",
    "runner.workers": "it is always 2",
    "runner.full": "it is always true; runner.enabled disables all blocks of Python",
    "jobs.disk_bytes": "it is twice workspace.max_repository_bytes",
    "jobs.context": "the current context of the kubeconfig is used",
    "jobs.kubeconfig": "use the environment variable KUBECONFIG",
    "limits.story_calls": "it is always 10,000",
    "agents.timeout_seconds": "it is always 900 seconds",
    "llm.reasoning_tokens": "a reply that reasoning filled is repeated with 8,192 more tokens",
    "mcp.kept": "it is always 16",
    "mcp.folder": "it is the folder mcp of the data directory",
    "web.calls": "it is always 256",
    "forge.poll_seconds": "it is always 60 seconds",
    "forge.webhook_host": "use forge.webhook_address, HOST:PORT",
    "forge.webhook_port": "use forge.webhook_address, HOST:PORT",
    "graph.database": "use graph.url, as in neo4j://host:7687/database",
    "seed": "it is always 0, unless a request sets another one",
}
"""What applies instead of each removed setting."""

_MIN_SIMILARITY = 0.75


def describe_unknown(keys: Sequence[str], word: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the error message for a name that is not a setting, without the name itself.

    keys: its parts; word: the part that may be misspelled; names: possible corrections of `word`;
    prefix: precedes it in the message.
    """
    in_models = keys[0] == "models" and len(keys) > 2  # noqa: PLR2004 - models.NAME.key
    section = ("llm", *keys[2:]) if in_models else keys
    if reason := REMOVED.get(".".join(section)):
        return f"was removed: {reason}. Delete it"
    from difflib import get_close_matches

    matches = get_close_matches(word, list(names), n=1, cutoff=_MIN_SIMILARITY)
    return "is not a setting; " + (
        f"did you mean {prefix}{matches[0]}?" if matches else "`moothall config` lists all"
    )


# The configuration file, the locations of settings in it, and the process's environment.


_HEADER = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


def default_file() -> Path:
    """Return the path of the configuration file that is read by default if it exists."""
    return Path(platformdirs.user_config_dir("moothall")) / "config.toml"


def find_default_file() -> Path | None:
    """Return the default configuration file, or None if it does not exist."""
    return default_file() if default_file().is_file() else None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises `ConfigurationError`."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"configuration file {path} is not TOML: {error}") from error


def location_of(path: Path, content: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return `FILE, line N: ` for a setting in the file; '' for a setting from the environment."""
    value: Any = content
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return ""
        value = value[key]
    return f"{path}, line {line_of(path.read_text(encoding='utf-8'), keys)}: "


def line_of(text: str, keys: Sequence[str]) -> int:
    """Return the number of the line with the longest prefix of the keys, or 1."""
    section: list[str] = []
    best_length, best_number = 0, 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            section = path = _split_key(header[1])
        elif key := _KEY.match(line):
            path = [*section, *_split_key(key[1])]
        else:
            continue
        if len(path) > best_length and list(keys[: len(path)]) == path:
            best_length, best_number = len(path), number
    return best_number


def describe_unknown_key(settings: type[BaseModel], keys: Sequence[str]) -> str:
    """Return the error message for an unknown key."""
    model: type[BaseModel] | None = settings
    kind: Any = None
    for key in keys[:-1]:
        if get_origin(kind) is Mapping:  # sections by name
            kind = get_args(kind)[1]
        else:
            kind = (
                model.model_fields[key].annotation if model and key in model.model_fields else None
            )
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return describe_unknown(keys, keys[-1], model.model_fields if model else ())


def _split_key(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


# uvloop starts programs by fork(), which runs gRPC's fork handlers. While gRPC was busy, about
# every tenth program died of them before its start (a failed assertion in gRPC's pollers).
# Moothall does not use gRPC in forked children.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def environment() -> Mapping[str, str]:
    """Return the process's environment, for repository credentials that are named by variable."""
    return dict(os.environ)
