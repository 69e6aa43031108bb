"""Formats of other programs: tasks of Harbor, and trajectories of seats as ATIF documents."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moothall import __version__
from moothall.domain import codec
from moothall.domain.budget import Usage
from moothall.domain.codec import list_of, load, mapping_of, text_of
from moothall.domain.event import Event, EventType
from moothall.domain.ids import check_id
from moothall.errors import InvalidRequest
from moothall.evaluate.tasks import Task
from moothall.ranking.diffs import file_diffs
from moothall.repositories.gitcmd import GitRunner
from moothall.repositories.profile import Commands, read_text

# Trajectories of seats as ATIF documents (Agent Trajectory Interchange Format, version 1.6).


_SCHEMA = "ATIF-v1.6"


def trajectories(events: Sequence[Event], text: str) -> dict[str, dict[str, Any]]:
    """Return a document for each seat that took a turn.

    Its steps are the task and then the turns, with tool calls and their results. Model calls of a
    turn
    count in its metrics; calls outside of turns, such as reviews, only in the final metrics.
    """
    seats = {
        seat: None
        for event in events
        if event.type is EventType.SEAT_TURN and (seat := text_of(event.data.get("seat")))
    }
    return {
        seat: _trajectory_document(
            [event for event in events if event.data.get("seat") == seat], seat, text
        )
        for seat in seats
    }


def _trajectory_document(events: Sequence[Event], seat: str, text: str) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": text}]
    total, turn, model, answer = Usage(), Usage(), "", ""
    for event in events:
        if event.type is EventType.MODEL_CALLED:
            model = text_of(event.data.get("model")) or model
            usage = load(Usage, mapping_of(event.data.get("usage")))
            total, turn = total + usage, turn + usage
            answer = text_of(event.data.get("answer"))
        elif event.type is EventType.SEAT_TURN:
            message = (
                text_of(event.data.get("thought")) or answer
            )  # a reply that could not be used has no thought
            steps.append(
                _trajectory_step(event, len(steps) + 1, model, turn) | {"message": message}
            )
            turn, answer = Usage(), ""
    return {
        "schema_version": _SCHEMA,
        "session_id": f"{text_of(events[0].data.get('task_id'))}-{seat}",
        "agent": {
            "name": "moothall",
            "version": __version__,
            **({"model_name": model} if model else {}),
            "extra": {"seat": seat},
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": total.prompt_tokens,
            "total_completion_tokens": total.completion_tokens,
            "total_cached_tokens": total.cached_tokens,
            "total_cost_usd": total.cost_usd,
            "total_steps": len(steps),
        },
    }


def _trajectory_step(event: Event, number: int, model: str, usage: Usage) -> dict[str, Any]:
    calls = [mapping_of(call) for call in list_of(event.data.get("calls"))]
    step: dict[str, Any] = {
        "step_id": number,
        **({"timestamp": event.time} if event.time else {}),
        "source": "agent",
        **({"model_name": model} if model else {}),
        "message": "",
    }
    if calls:
        names = [
            text_of(call.get("id")) or f"{number}-{index}" for index, call in enumerate(calls, 1)
        ]
        step["tool_calls"] = [
            {
                "tool_call_id": name,
                "function_name": text_of(call.get("tool")),
                "arguments": dict(mapping_of(call.get("arguments"))),
            }
            for name, call in zip(names, calls, strict=True)
        ]
        step["observation"] = {
            "results": [
                {"source_call_id": name, "content": _result_content(call)}
                for name, call in zip(names, calls, strict=True)
            ]
        }
    if usage != Usage():
        step["metrics"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
        }
    if verdicts := mapping_of(event.data.get("checks")):
        step["extra"] = {"checks": dict(verdicts)}
    return step


def _result_content(call: Mapping[str, Any]) -> str:
    """Return the result of a tool call as text."""
    if error := call.get("error"):
        return error if isinstance(error, str) else json.dumps(error)
    output = call.get("output")
    return output if isinstance(output, str) else json.dumps(output)


# Read and write tasks in Harbor's format: task.toml, instruction.md, environment/, tests/,
# solution/.
#
# Fields that Harbor lacks are in [metadata.moothall] of task.toml. A task without them is refused:
# it needs a container image.


BUNDLE, TESTS, FIX = "environment/repository.bundle", "tests/tests.patch", "solution/fix.patch"
_HARBOR_SCHEMA = "1.3"
_MAX_BYTES = 20_000_000
_SECONDS = {"agent": 3600.0, "verifier": 1800.0, "build": 1800.0}
_GO, _RUST, _PYTHON, _NODE = (
    "golang:1-bookworm",
    "rust:1-bookworm",
    "python:3-bookworm",
    "node:22-bookworm",
)
_IMAGES = {"go": _GO, "cargo": _RUST, "python": _PYTHON, "python3": _PYTHON, "pytest": _PYTHON}
_METADATA_KEYS = ("parent", "commit", "cases", "kept", "paths", "commands")
_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Harbor:
    """Writes tasks to `folder` and reads them from there. `git` runs on the trusted side."""

    folder: Path
    git: GitRunner

    async def write(self, task: Task, sealed: Path, commands: Commands) -> Path:
        """Write a task and return its folder.

        sealed: the repository that ends with the task's parent. commands: its set-up and checks.
        """
        place = self.folder / task.id
        files = {
            "task.toml": _config_text(task),
            "instruction.md": f"{task.text}\n",
            "environment/Dockerfile": _dockerfile_text(task, commands),
            TESTS: task.tests,
            "tests/test.sh": _test_script(task, commands),
            FIX: task.fix,
            "solution/solve.sh": (
                "#!/bin/bash\nset -e\ncd /app\ngit apply --whitespace=nowarn /solution/fix.patch\n"
            ),
        }
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                path.chmod(0o755)
        await self.git.run(
            "bundle", "create", "--quiet", str((place / BUNDLE).resolve()), "--all", cwd=sealed
        )
        return place

    async def read(self, clones: Path) -> list[Task]:
        """Return the tasks of the folder, with repositories unpacked below `clones`.

        Raises `InvalidRequest`.
        """
        places = [path.parent for path in sorted(self.folder.glob("*/task.toml"))] or [self.folder]
        tasks: dict[str, Task] = {}
        for place in places:
            task = await self._read_task(place, clones)
            if task.id in tasks:
                raise InvalidRequest(
                    f"{place}: another task of the folder has the name {task.id}, too. Rename one "
                    "of them"
                )
            tasks[task.id] = task
        return [*tasks.values()]

    async def _read_task(self, place: Path, clones: Path) -> Task:
        try:
            document = tomllib.loads(_read_task_file(place, "task.toml"))
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{place / 'task.toml'} is not TOML: {error}") from error
        metadata = mapping_of(mapping_of(document.get("metadata")).get("moothall"))
        if not metadata:
            raise InvalidRequest(
                f"{place} cannot be run: task.toml has no [metadata.moothall], and evaluate does "
                "not run its container image. Name repository, parent and cases in that table "
                "(docs/evaluate.md)"
            )
        name = (
            text_of(mapping_of(document.get("task")).get("name")).rpartition("/")[2] or place.name
        )
        repository = text_of(metadata.get("repository"))
        if not _SHA.fullmatch(text_of(metadata.get("parent"))):
            raise InvalidRequest(
                f"{place / 'task.toml'}: metadata.moothall.parent is not a full commit id"
            )
        task = codec.load(
            Task,
            {
                "commit": metadata.get("parent"),
                "cases": {},
                **{key: metadata[key] for key in _METADATA_KEYS if key in metadata},
                "id": check_id(name, f"the name of {place}"),
                "repository": repository,
                "text": _read_task_file(place, "instruction.md").strip(),
                "tests": _read_task_file(place, TESTS),
                "fix": _read_task_file(place, FIX, needed=False),
            },
        )
        if not any(task.cases.values()):
            raise InvalidRequest(
                f"{place / 'task.toml'}: metadata.moothall.cases names no test case"
            )
        if _resolve_inside(place, BUNDLE).is_file():
            return codec.load(
                Task,
                codec.dump(task)
                | {"repository": str(await self._unpack_bundle(place, clones / f"{task.id}.git"))},
            )
        if not repository:
            raise InvalidRequest(f"{place} has neither {BUNDLE} nor metadata.moothall.repository")
        return task

    async def _unpack_bundle(self, place: Path, target: Path) -> Path:
        """Unpack a task's bundle into a bare repository."""
        if not (target / "HEAD").exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            await self.git.run(
                "init",
                "--quiet",
                "--bare",
                "--template=",
                "--initial-branch=main",
                "--",
                str(target),
                cwd=target.parent,
            )
        await self.git.run(
            "fetch",
            "--quiet",
            "--no-write-fetch-head",
            "--",
            str((place / BUNDLE).resolve()),
            "+refs/*:refs/*",
            cwd=target,
            env={"GIT_ALLOW_PROTOCOL": "file"},
        )
        return target


def _resolve_inside(place: Path, name: str) -> Path:
    """Return a file of a task. Raises `InvalidRequest` if links lead out of the task's folder."""
    path = place / name
    if not path.resolve().is_relative_to(place.resolve()):
        raise InvalidRequest(f"{path} leads out of its folder; replace the link with a file")
    return path


def _read_task_file(place: Path, name: str, *, needed: bool = True) -> str:
    text = read_text(_resolve_inside(place, name), _MAX_BYTES)
    if text is None and needed:
        raise InvalidRequest(f"{place / name} cannot be read; evaluate needs it to run the task")
    return text or ""


def _config_text(task: Task) -> str:
    """Return task.toml."""
    metadata = {
        key: value for key, value in codec.dump(task).items() if key in _METADATA_KEYS and value
    }
    document: dict[str, Any] = {
        "schema_version": _HARBOR_SCHEMA,
        "task": {"name": f"moothall/{task.id}", "description": task.text.partition("\n")[0][:200]},
        "metadata": {"category": "bug-fix", "moothall": metadata},
        "agent": {"timeout_sec": _SECONDS["agent"]},
        "verifier": {"timeout_sec": _SECONDS["verifier"]},
        "environment": {
            "build_timeout_sec": _SECONDS["build"],
            "network_mode": "no-network",
            "cpus": 2,
            "memory_mb": 4096,
            "storage_mb": 10240,
        },
    }
    return "\n".join(_toml_lines(document)) + "\n"


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the lines of a TOML table: its values, then the tables in it."""
    if path:
        yield ""
        yield f"[{'.'.join(_toml_key(part) for part in path)}]"
    for name, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_toml_key(name)} = {_toml_value(value)}"
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, (*path, name))


def _toml_value(value: object) -> str:
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return json.dumps(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_string(text: str) -> str:
    """Return a basic string of TOML. JSON escapes the same characters except DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _dockerfile_text(task: Task, commands: Commands) -> str:
    """Return a Dockerfile that unpacks the repository at the parent and sets it up."""
    setup = [shlex.join(argv) for argv in commands.setup or ()]
    programs = [
        word.rpartition("/")[2] for argv in (commands.checks or {}).values() for word in argv
    ]
    image = next((_IMAGES[program] for program in programs if program in _IMAGES), _NODE)
    lines = [
        f"FROM {image}",
        (
            "RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf "
            "/var/lib/apt/lists/*"
        ),
        "COPY repository.bundle /tmp/repository.bundle",
        (
            "RUN git clone --quiet /tmp/repository.bundle /app && git -C /app checkout --quiet "
            f"{task.parent} && rm /tmp/repository.bundle"
        ),
        "WORKDIR /app",
        *(
            [
                "RUN python -m venv /env && /env/bin/pip install --quiet pytest",
                "ENV PATH=/env/bin:$PATH",
            ]
            if image == _PYTHON
            else []
        ),
        *(f"RUN {line}" for line in setup if "\n" not in line),
    ]
    return "\n".join(lines) + "\n"


def _test_script(task: Task, commands: Commands) -> str:
    """Return the script that runs the hidden tests on the answer and writes the reward: 1 if all
    pass.
    """
    lines = [
        "#!/bin/bash",
        "mkdir -p /logs/verifier",
        "echo 0 > /logs/verifier/reward.txt",
        "cd /app || exit 0",
        # An answer may have changed the same files: restore them before the patch with the hidden
        # tests.
        *(
            f"git checkout --quiet {task.parent} -- {shlex.quote(path)} 2>/dev/null || rm -rf -- "
            f"{shlex.quote(path)}"
            for path in _hidden_files(task)
        ),
        "git apply --whitespace=nowarn /tests/tests.patch || exit 0",
        *(f"{line} || exit 0" for line in _case_commands(task, commands)),
        "echo 1 > /logs/verifier/reward.txt",
    ]
    return "\n".join(lines) + "\n"


def _hidden_files(task: Task) -> list[str]:
    return [part.path for part in file_diffs(task.tests)]


def _case_commands(task: Task, commands: Commands) -> Iterator[str]:
    """Yield commands that run the hidden cases: only those for pytest and go, else the whole
    check.
    """
    checks = commands.checks or {}
    for check in sorted({*task.cases, *task.kept}):
        argv = list(checks.get(check, ()))
        cases = [*task.cases.get(check, ()), *task.kept.get(check, ())]
        if "pytest" in argv or any(word.endswith("/pytest") for word in argv):
            yield shlex.join([*argv, *cases])
        elif argv[:2] == ["go", "test"]:
            names = dict.fromkeys(case.partition("::")[2].partition("/")[0] for case in cases)
            yield shlex.join(
                [
                    *argv,
                    "-count=1",
                    "-run",
                    f"^({'|'.join(re.escape(name) for name in names if name)})$",
                ]
            )
        elif argv:
            yield shlex.join(argv)
        else:
            raise InvalidRequest(
                f"the task {task.id} cannot be written: its check {check} has no command. Name it "
                "in a --profile"
            )
