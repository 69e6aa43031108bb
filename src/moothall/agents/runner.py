"""Loads agent specs, and runs their agents."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.reader import ReaderError

from moothall.agents.specs import Spec, order_specs, order_tasks, tools_of
from moothall.domain.ids import Principal, TaskId, check_task_id, digest
from moothall.domain.outcome import DeliberationStatus, Outcome
from moothall.domain.task import (
    VALIDATION,
    AgentRef,
    Constraints,
    DeliberationRequest,
    RepositoryRef,
)
from moothall.domain.tool import Bounds, ToolUsage
from moothall.errors import InvalidRequest, MoothallError, WrongField, wrong_fields
from moothall.ports import Deliberations
from moothall.stories.integration import (
    IntegrationTarget,
    failure_reason,
    merge_commits,
    run_deliberation,
)

# Loading of agent specs. Each error of a bad file is reported with its line, and the other files
# load.


_MAX_FILE_BYTES = 256_000


@dataclass(frozen=True, slots=True)
class SpecError:
    """An error in a file; line 0 means the whole file."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}{f', line {self.line}' if self.line else ''}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadedSpecs:
    """The valid specs by file, the errors, and notes such as unused keys."""

    specs: dict[str, Spec] = field(default_factory=dict)
    errors: tuple[SpecError, ...] = ()
    notes: tuple[SpecError, ...] = ()


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the named files, and the YAML files in named folders, in order. Raises
    `InvalidRequest` for a path that does not exist.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"{path} does not exist: name a file or a folder of agents")
        folder_files = (
            file for file in path.rglob("*") if file.suffix in {".yaml", ".yml"} and file.is_file()
        )
        files += sorted(folder_files) if path.is_dir() else [path]
    return files


def load(paths: Sequence[Path]) -> LoadedSpecs:
    """Load files and folders; larger files than `_MAX_FILE_BYTES` are errors. Raises
    `InvalidRequest` for a path that does not exist.
    """
    specs: dict[str, Spec] = {}
    errors: list[SpecError] = []
    unused: list[SpecError] = []
    for path in dict.fromkeys(files_of(paths)):
        file = str(path)
        try:
            spec, node = _read_spec(path)
        except _InvalidFile as invalid:
            errors += invalid.errors
            continue
        specs[file] = spec
        unused += [
            SpecError(
                file,
                _line_of(node, key_path),
                f"{'.'.join(map(str, key_path))} is not a known key and has no effect",
            )
            for key_path in _unknown_keys(spec, ())
        ]
    files: dict[str, str] = {}
    for file, spec in list(specs.items()):
        if (first_file := files.setdefault(spec.name, file)) != file:
            errors.append(
                SpecError(file, 0, f"{first_file} already has an agent called {spec.name}")
            )
            del specs[file]
    return LoadedSpecs(specs, tuple(errors), tuple(unused))


def check_order(specs: Sequence[Spec]) -> tuple[str, ...]:
    """Return the names in the order in which they would run one by one. Raises `InvalidRequest` for
    a cycle or a missing dependency.
    """
    return tuple(order_specs(specs))


class _InvalidFile(Exception):
    def __init__(self, errors: Sequence[SpecError]) -> None:
        super().__init__()
        self.errors = errors


class _UnsupportedYaml(yaml.MarkedYAMLError):
    """A YAML feature that specs may not use."""


class _Loader(yaml.SafeLoader):
    """A loader of plain values: no tags, and no aliases, since a few lines of them can expand to
    gigabytes. A date stays the text as written.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call] # there is no type
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise _UnsupportedYaml(
                problem="aliases (*name) are not allowed; write the value itself", problem_mark=mark
            )
        if tag := getattr(event, "tag", None):
            raise _UnsupportedYaml(
                problem=f"tags are not allowed ({tag[:40]}); write the value alone",
                problem_mark=mark,
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    sign: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_spec(path: Path) -> tuple[Spec, yaml.Node]:
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise _InvalidFile([SpecError(file, 0, f"it has more than {_MAX_FILE_BYTES:,} bytes")])
        node, data = _parse_yaml(file, raw.decode("utf-8"))
    except OSError as error:
        raise _InvalidFile([SpecError(file, 0, error.strerror or str(error))]) from error
    except RecursionError as error:
        raise _InvalidFile(
            [SpecError(file, 0, "it is nested too deeply; use flatter lists and maps")]
        ) from error
    except ValueError as error:  # invalid UTF-8, or a number that cannot be parsed
        raise _InvalidFile([SpecError(file, 0, f"it is not YAML: {error}")]) from error
    if not isinstance(data, dict) or node is None:
        raise _InvalidFile(
            [SpecError(file, 0, "it is not a map of sections; metadata and objectives are needed")]
        )
    try:
        spec = Spec.model_validate(data)
        order_tasks(spec.tasks)
    except ValidationError as error:
        raise _InvalidFile(
            [
                SpecError(file, _line_of(node, field_error.place), _describe_error(field_error))
                for field_error in wrong_fields(error)
            ]
        ) from error
    except InvalidRequest as error:
        raise _InvalidFile([SpecError(file, _line_of(node, ("tasks",)), error.message)]) from error
    return spec, node


def _parse_yaml(file: str, text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a text and its value. Raises `_InvalidFile`, `ValueError`,
    `RecursionError`.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, None
        if repeated := list(_repeated_keys(node)):
            raise _InvalidFile(
                [SpecError(file, line, f"{key} is set twice") for key, line in repeated]
            )
        return node, loader.construct_document(node)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _InvalidFile(
            [
                SpecError(
                    file,
                    line,
                    f"it contains a character that is not allowed, U+{error.character:04X}",
                )
            ]
        ) from error
    except yaml.MarkedYAMLError as error:
        prefix = "" if isinstance(error, _UnsupportedYaml) else "it is not YAML: "
        mark = error.problem_mark
        raise _InvalidFile(
            [SpecError(file, mark.line + 1 if mark else 0, f"{prefix}{error.problem}")]
        ) from error


_MESSAGES = {
    "string_type": "it is not text; put it in quotes",
    "tuple_type": "it is not a list",
    "model_type": "it is not a map of keys and values",
    "missing": "it is missing",
}


def _describe_error(wrong_field: WrongField) -> str:
    location = ".".join(map(str, wrong_field.place))
    message = _MESSAGES.get(wrong_field.fault, wrong_field.sentence)
    if wrong_field.fault == "string_pattern_mismatch":  # only names have a pattern
        message = "a name is small letters, digits and dashes, at most 63, and begins with no dash"
    return f"{location}: {message}" if location else message


@lru_cache(maxsize=8)  # the lines of thousands of keys of one file may be looked up
def _mapping_entries(node: yaml.MappingNode) -> Mapping[str, tuple[yaml.Node, yaml.Node]]:
    return {str(key.value): (key, value) for key, value in node.value}


def _line_of(node: yaml.Node, location: Sequence[Any]) -> int:
    """Return the line of the deepest part of `location` that the file has."""
    for part in location:
        if isinstance(node, yaml.MappingNode):
            if (entry := _mapping_entries(node).get(str(part))) is None:
                continue  # a level such as `default` is in between, or the key is missing
            if part == location[-1]:
                return int(entry[0].start_mark.line) + 1
            node = entry[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value)
        ):
            node = node.value[part]
    return int(node.start_mark.line) + 1


def _repeated_keys(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Yield the keys that a map has twice, which YAML parsers accept silently."""
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if str(key.value) in keys:
                yield str(key.value), key.start_mark.line + 1
            keys.add(str(key.value))
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value)


def _unknown_keys(
    part: BaseModel, parent: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of a spec's unknown keys."""
    for name in part.model_extra or ():
        yield (*parent, name)
    for name in type(part).model_fields:
        value = getattr(part, name)
        for number, item in enumerate(value) if isinstance(value, tuple) else (("", value),):
            if isinstance(item, BaseModel):
                yield from _unknown_keys(
                    item, (*parent, name, *((number,) if isinstance(number, int) else ()))
                )


# Running of the agents. Each is an ordinary deliberation that starts when its dependencies have
# completed, on their merged results.
#
# The validation commands alone decide whether an agent succeeded; the server runs them on a clean
# checkout of the winner. The ids of a run's deliberations derive from the name of the run, so a run
# that is started again under its name continues.


_MAX_BACKOFF_SECONDS, _CANCEL_SECONDS = 300.0, 5.0


class State(StrEnum):
    """How an agent ended. `skipped`: a dependency did not complete."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an agent, with its last task and the delivered commit and branch. `runs` counts
    its attempts; `wall_ms` and `tools` are the usage of the last one.
    """

    name: str
    state: State
    reason: str = ""
    task_id: str = ""
    branch: str = ""
    commit_sha: str = ""
    runs: int = 0
    wall_ms: int = 0
    tools: ToolUsage = ToolUsage()

    @property
    def used(self) -> str:
        """The usage of the last run, as text."""
        return (
            f"{self.wall_ms / 1000:.1f} s, {self.tools.cpu_ms / 1000:.1f} s of CPU, "
            f"{self.tools.max_rss_bytes / 10**6:.0f} MB"
        )


@dataclass
class AgentRun:
    """One run of several agents on a repository. `report_progress` gets a line for each step; at
    most `at_once` agents run side by side.
    """

    deliberations: Deliberations
    principal: Principal
    repository: RepositoryRef
    name: str
    at_once: int
    report_progress: Callable[[str], None] = lambda _line: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    longest: float = math.inf
    """The most seconds of one run, whatever its spec says."""
    ended: dict[str, Ended] = field(default_factory=dict)

    async def run_all(self, specs: Sequence[Spec]) -> Mapping[str, Ended]:
        """Run the agents and return how each ended, in their order. Raises `InvalidRequest` for a
        cycle or a missing dependency.
        """
        order, by_name = order_specs(specs), {spec.name: spec for spec in specs}
        running: set[asyncio.Task[Ended]] = set()
        async with asyncio.TaskGroup() as group:
            while len(self.ended) < len(by_name):
                while len(running) < self.at_once and (name := order.next()) is not None:
                    running.add(group.create_task(self._run_agent(by_name[name]), name=name))
                finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for ended in (task.result() for task in finished):
                    self.ended[ended.name] = ended
                    reasons = [first_line(ended.reason)] if ended.reason else []
                    self.report_progress(
                        ", ".join(
                            [
                                f"{ended.name}: {ended.state}",
                                *reasons,
                                *([ended.used] if ended.runs else []),
                            ]
                        )
                    )
                    order.finish(ended.name)
        return {name: self.ended[name] for name in order_specs(specs)}

    async def _run_agent(self, spec: Spec) -> Ended:
        required = [dependency.name for dependency in spec.dependencies if not dependency.optional]
        if missing := [name for name in required if self.ended[name].state is not State.COMPLETED]:
            return Ended(spec.name, State.SKIPPED, f"{missing[0]} did not complete")
        base, reason = await self._merge_dependencies(spec)
        if base is None:
            return Ended(spec.name, State.FAILED, reason)
        ended, max_restarts = Ended(spec.name, State.FAILED), spec.restart.max_restarts
        for number in range(1, max_restarts + 2):
            self.report_progress(
                f"{spec.name}: "
                + ("begins" if number == 1 else f"restarting, {number - 1} of {max_restarts}")
            )
            request = request_of(
                spec, base, self._task_id(spec.name, f"{number}"), number, self.longest
            )
            outcome = await self._run_deliberation(request)
            tool_usage = sum((seat.tools for seat in outcome.seats), ToolUsage())
            ended = replace(
                _ended_of(spec, outcome), runs=number, wall_ms=outcome.duration_ms, tools=tool_usage
            )
            # A run that a person stopped is not restarted.
            if (
                ended.state is State.COMPLETED
                or number > max_restarts
                or outcome.status is DeliberationStatus.CANCELLED
            ):
                break
            wait_seconds = min(
                spec.restart.backoff_seconds * 2 ** (number - 1), _MAX_BACKOFF_SECONDS
            )
            self.report_progress(
                f"{spec.name}: {first_line(ended.reason)}; trying again in {wait_seconds:g} s"
            )
            await self.sleep(wait_seconds)
        return ended

    async def _run_deliberation(self, request: DeliberationRequest) -> Outcome:
        """Run a deliberation and return its outcome. Cancel it if the run is interrupted."""
        try:
            return await run_deliberation(self.deliberations, request, self.principal)
        except asyncio.CancelledError:
            with suppress(MoothallError, TimeoutError):
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self.deliberations.cancel(
                        check_task_id(request.task_id), "interrupted", self.principal
                    )
            raise

    async def _merge_dependencies(self, spec: Spec) -> tuple[RepositoryRef | None, str]:
        """Return the repository to start from: the merged results of all dependencies. Return None
        and the reason if they cannot be merged.
        """
        completed = [
            ended
            for dependency in spec.dependencies
            if (ended := self.ended.get(dependency.name)) and ended.state is State.COMPLETED
        ]
        commits = tuple(dict.fromkeys(ended.commit_sha for ended in completed))
        if len(commits) < 2:  # noqa: PLR2004 - a merge needs two
            return replace(self.repository, ref=commits[0]) if commits else self.repository, ""
        target = IntegrationTarget(
            self.repository,
            "",
            "",
            f"What {', '.join(ended.name for ended in completed)} did.",
            Constraints(),
        )
        merge_outcome = await merge_commits(
            self.deliberations, self._task_id(spec.name, "base"), commits, target, self.principal
        )
        if not merge_outcome.commit_sha:
            return (
                None,
                (
                    "the changes that it builds on could not be merged: "
                    f"{failure_reason(merge_outcome)}"
                ),
            )
        return replace(self.repository, ref=merge_outcome.commit_sha), ""

    def _task_id(self, name: str, part: str) -> TaskId:
        return TaskId(f"{self.name[:20]}-{name[:20]}-{digest(self.name, name)[:8]}-{part}")


def first_line(reason: str) -> str:
    """Return the first line of a reason."""
    return reason.partition("\n")[0]


def request_of(
    spec: Spec, base: RepositoryRef, task_id: str = "", number: int = 1, longest: float = math.inf
) -> DeliberationRequest:
    """Return the request to the deliberation service for the `number`-th run of an agent. It may
    take at most `longest` seconds.
    """
    limits = spec.security.resource_limits
    return DeliberationRequest(
        description=spec.instructions(order_tasks(spec.tasks)),
        role=spec.spec.role,
        task_id=task_id,
        constraints=Constraints(timeout_seconds=math.ceil(min(limits.timeout or 0, longest))),
        num_agents=spec.spec.seats,
        repository=base,
        protocol=spec.spec.protocol,
        seed=(spec.model.seed or 0) + number - 1,  # the same seed would repeat the same run
        model=spec.model.profile,
        checks=spec.validations,
        tools=tools_of(spec.security.capabilities_required),
        agent=AgentRef(
            spec.name,
            spec.metadata.workstream,
            Bounds(int(limits.max_memory or 0), (limits.max_cpu or 0) / 100),
        ),
    )


def _ended_of(spec: Spec, outcome: Outcome) -> Ended:
    """Return how an agent ended: it completed if its winner passed every validation."""
    ended = Ended(
        spec.name,
        State.FAILED,
        task_id=outcome.task_id,
        branch=outcome.branch,
        commit_sha=outcome.commit_sha,
    )
    winner = next((result for result in outcome.results if result.seat == outcome.winner_id), None)
    if winner is None or outcome.status is not DeliberationStatus.COMPLETED:
        return replace(
            ended,
            reason=next(
                (seat.error_message for seat in outcome.seats if seat.error_message),
                failure_reason(outcome),
            ),
        )
    for number, command in enumerate(spec.validations, 1):
        if (verdict := winner.checks.get(f"{VALIDATION}-{number}", "missing")) != "passed":
            return replace(ended, reason=f"the validation {command!r} is {verdict}")
    return replace(ended, state=State.COMPLETED)
