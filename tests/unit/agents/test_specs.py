"""Agent files: every format loads, and errors are reported with their line."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from moothall.agents.runner import LoadedSpecs, check_order, load, request_of
from moothall.agents.specs import CAPABILITIES, Spec, SpecPart, order_tasks, schema, tools_of
from moothall.domain.task import RepositoryRef
from moothall.domain.tool import Grant
from moothall.errors import InvalidRequest
from moothall.tools.catalogue import CATALOGUE, is_granted

ROOT = Path(__file__).parents[3]
MINIMAL: dict[str, Any] = {
    "metadata": {"name": "a"},
    "objectives": [{"description": "x", "validation": "make x"}],
}


GOOD = "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\n"
HOSTILE: list[tuple[str, int, str]] = [
    (
        "metadata:\n\tname: a\n",
        2,
        "it is not YAML: found character '\\t' that cannot start any token",
    ),
    (f"{GOOD}spec:\n  role: dev\n  role: qa\n", 6, "role is set twice"),
    (f"{GOOD}x: \0\n", 4, "it contains a character that is not allowed, U+0000"),
    (f"{GOOD}x: 0x_\n", 0, "it is not YAML: invalid literal for int()"),
    (f"{GOOD}model:\n  seed: {'9' * 5000}\n", 0, "it is not YAML: Exceeds the limit"),
    (f"{GOOD}model:\n  seed: 0x{'f' * 50_000}\n", 5, "model.seed: "),
    (f"{GOOD}? [a, b]\n: c\n", 4, "it is not YAML: found unhashable key"),
    (f"{GOOD}1: x\n", 4, "1: Keys should be strings"),
    (f"{GOOD}<<: 5\n", 4, "it is not YAML: expected a mapping"),
    (f"{GOOD}---\n{GOOD}", 4, "it is not YAML: but found another document"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 2, "aliases (*name) are not allowed"),
    ("# nothing\n", 0, "it is not a map of sections"),
    ("x" * 300_000, 0, "it has more than 256,000 bytes"),
    (f"{GOOD}dependencies:\n  required: 5\n", 4, "dependencies: dependencies is not a list"),
    (f"{GOOD}dependencies: [[a]]\n", 4, "dependencies.0: it is not a map of keys and values"),
    (f"{GOOD}tasks:\n  default: {{a: 1}}\n", 4, "tasks: tasks.default is not a list"),
    (f"{GOOD}tasks: {{1: a, b: c}}\n", 4, "tasks has no '1'; allowed are default and conditional"),
    (f"{GOOD}reporting: {{metrics: 5}}\n", 4, "reporting.metrics: metrics is not a list"),
    (f"{GOOD}capabilities: 5\n", 4, "capabilities: it is not a list"),
    (
        f"{GOOD}security:\n  capabilities_required: [5]\n",
        5,
        "security.capabilities_required.0: it is not text; put it in quotes",
    ),
    (
        f"{GOOD}security:\n  resource_limits: {{timeout: {'9' * 400}h}}\n",
        5,
        "is not a valid quantity",
    ),
    (f"{GOOD}security:\n  resource_limits: {{timeout: -5}}\n", 5, "'-5' is not a valid quantity"),
    (
        f"{GOOD}security:\n  resource_limits: {{max_cpu: .nan}}\n",
        5,
        "'nan' is not a valid quantity",
    ),
    (
        "metadata: {name: on}\nobjectives:\n- {description: x, validation: v}\n",
        1,
        "metadata.name: it is not text; put it in quotes",
    ),
    (
        "metadata:\nobjectives:\n- {description: x, validation: v}\n",
        1,
        "metadata: it is not a map of keys and values",
    ),
    ("metadata: {name: a}\n", 1, "objectives: it is missing"),
    (
        'metadata: {name: a}\nobjectives:\n- {description: x, validation: "it\'s"}\n',
        3,
        "cannot be split into words",
    ),
    (
        'metadata: {name: a}\nobjectives:\n- {description: x, validation: "a\\0b"}\n',
        3,
        "is not a command",
    ),
]


def spec(**fields: Any) -> Spec:
    data = MINIMAL | fields
    Draft202012Validator(schema()).validate(data)
    return Spec.model_validate(data)


@pytest.mark.parametrize(
    "definition",
    [
        {"build": "100%", "time": 30},
        [{"build": "100%"}, {"time": 30}],
        [{"name": "build", "target": "100%", "unit": "share"}, {"name": "time", "target": 30}],
        [{"build": "100%", "time": 30}],
        {"build": "100%", "time": "30"},
    ],
)
def test_metrics_are_read_in_every_format(definition: Any) -> None:
    assert [
        (metric.name, metric.target)
        for metric in spec(reporting={"metrics": definition}).reporting.metrics
    ] == [
        ("build", "100%"),
        ("time", "30"),
    ]


@pytest.mark.parametrize(
    "definition",
    [
        {"b": "its types", "c": None},
        {"required": {"b": "its types"}, "optional": ["c"]},
        {"required": "b", "optional": "c"},
        {"required": [{"b": "its types"}], "optional": {"c": None}},
        ["b", "c"],
        [{"b": "its types"}, "c"],
        [{"name": "b", "why": "its types"}, {"name": "c"}],
    ],
)
def test_dependencies_are_read_in_every_format(definition: Any) -> None:
    dependencies = spec(dependencies=definition).dependencies
    assert [dependency.name for dependency in dependencies] == ["b", "c"]
    assert dependencies[0].optional is False
    assert dependencies[1].optional == (isinstance(definition, dict) and "optional" in definition)


def test_limits_are_parsed_and_unknown_fields_kept() -> None:
    limits = {"max_memory": "512MB", "max_cpu": "75%", "timeout": "2h", "max_disk": "1GB"}
    parsed = spec(
        security={"resource_limits": limits},
        deployment={"region": "eu"},
        capabilities={"primary": ["yaml"], "secondary": ["c"]},
    )
    resource_limits = parsed.security.resource_limits
    assert (resource_limits.max_memory, resource_limits.max_cpu, resource_limits.timeout) == (
        512e6,
        75,
        7200,
    )
    assert parsed.model_extra == {"deployment": {"region": "eu"}}
    assert parsed.capabilities == ("primary: yaml", "secondary: c")


def test_tasks_are_ordered_by_dependencies_and_priorities() -> None:
    tasks = {
        "default": [
            {"name": "last", "description": "c", "dependencies": ["first"], "priority": "critical"},
            {"name": "first", "description": "a"},
        ],
        "conditional": [{"description": "only then", "condition": "it rains", "priority": "low"}],
    }
    parsed = spec(tasks=tasks)
    instructions = parsed.instructions(order_tasks(parsed.tasks))
    assert (
        instructions.index("- a")
        < instructions.index("- c")
        < instructions.index("- only then (only if: it rains)")
    )
    assert "x (validated by: make x)" in instructions


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            (
                "metadata: {name: a}\nobjectives:\n- description: x\n  validation: v\nspec:\n  "
                "priority: urgent\n"
            ),
            6,
            "spec.priority: Input should be 'critical'",
        ),
        (
            "metadata:\n  name: Not An Id\nobjectives:\n- {description: x, validation: v}\n",
            2,
            "metadata.name: a name is small letters, digits and dashes, at most 63",
        ),
        (
            "metadata: {name: a}\nobjectivs: []\n",
            1,
            "'objectivs' is not a known key; did you mean objectives?",
        ),
        (
            "metadata: {name: a}\nobjectives:\n- description: x\n",
            1,
            "no objective has a validation: give a command",
        ),
        (
            (
                "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  "
                "sandbox: false\n"
            ),
            5,
            "security.sandbox: Input should be True",
        ),
        (
            (
                "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  "
                "capabilities_required:\n  - filesystem-reed\n"
            ),
            6,
            "unknown capability 'filesystem-reed'; did you mean filesystem-read?",
        ),
        (
            (
                "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  "
                "resource_limits:\n    timeout: soon\n"
            ),
            6,
            "'soon' is not a valid quantity; write it as in \"2h\"",
        ),
        (
            (
                "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\ntasks:\n- "
                "{name: a, description: d, dependencies: [b]}\n"
            ),
            4,
            "a needs 'b', which does not exist",
        ),
        ("metadata: {name: a}\nmetadata: {name: b}\n", 2, "metadata is set twice"),
        ("a: [\n", 2, "it is not YAML"),
        ("a: &x 1\nb: *x\n", 2, "aliases (*name) are not allowed; write the value itself"),
        ("just words\n", 0, "it is not a map of sections"),
        ("- " * 20_000, 0, "it is nested too deeply; use flatter lists and maps"),
        (
            "a: !!python/object/apply:os.system [id]\n",
            1,
            "tags are not allowed (tag:yaml.org,2002:python/object/apply:os",
        ),
        *HOSTILE,
    ],
)
def test_an_invalid_file_is_named_with_line_and_reason_while_the_others_load(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    (tmp_path / "good.yaml").write_text(
        yaml.safe_dump(MINIMAL | {"metadata": {"name": "good"}}), encoding="utf-8"
    )
    (tmp_path / "wrong.yml").write_text(text, encoding="utf-8")
    loaded = load([tmp_path])
    assert [loaded_spec.name for loaded_spec in loaded.specs.values()] == ["good"]
    (error,) = loaded.errors
    assert (error.file, error.line) == (str(tmp_path / "wrong.yml"), line)
    assert reason in error.reason


_KEYS = st.sampled_from(
    sorted(
        {
            "required",
            "optional",
            "default",
            "conditional",
            *(n for part in SpecPart.__subclasses__() for n in part.model_fields),
        }
    )
)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.sampled_from(["", "a", "2h", "75%", "on", "critical", "filesystem-read"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.integers(0, 1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(Spec.model_fields)), _VALUES, max_size=3))
def test_any_combination_of_sections_is_loaded_or_reported(sections: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_text(
            yaml.safe_dump(MINIMAL | sections, sort_keys=False), encoding="utf-8"
        )
        loaded = load([Path(folder)])
    assert bool(loaded.specs) is not bool(loaded.errors)
    assert all(item.line and item.reason for item in loaded.errors)
    for parsed in loaded.specs.values():
        assert parsed.name
        assert request_of(parsed, RepositoryRef(id="sample")).checks == parsed.validations


def test_thousands_of_tasks_load_and_a_cycle_of_thousands_is_reported_briefly(
    tmp_path: Path,
) -> None:
    (tmp_path / "many.yaml").write_text(
        f"{GOOD}tasks: [{', '.join(['look'] * 1_000)}]\n", encoding="utf-8"
    )
    (parsed,) = load([tmp_path]).specs.values()
    assert len(order_tasks(parsed.tasks)) == 1_000
    ring = [
        f"- {{name: t{number}, description: d, dependencies: [t{(number + 1) % 500}]}}"
        for number in range(500)
    ]
    (tmp_path / "many.yaml").write_text("\n".join([f"{GOOD}tasks:", *ring]), encoding="utf-8")
    (error,) = load([tmp_path]).errors
    assert (
        error.line,
        "these tasks depend on each other: t" in error.reason,
        len(error.reason) < 600,
    ) == (
        4,
        True,
        True,
    )
    keys = "".join(f"q{number}:\n" for number in range(2_000))
    (tmp_path / "many.yaml").write_text(GOOD + keys, encoding="utf-8")
    assert load([tmp_path]).notes[-1].line == 2_003


def test_dates_are_read_as_text_and_empty_sections_as_empty(tmp_path: Path) -> None:
    text = (
        f"{GOOD.replace('name: a', 'name: a, version: 2026-13-45, workstream: 2026-01-02')}risks:\n"
        "tasks:\ndependencies:\n"
    )
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    (parsed,) = load([tmp_path]).specs.values()
    assert (parsed.metadata.version, parsed.metadata.workstream) == ("2026-13-45", "2026-01-02")
    assert (parsed.risks, parsed.tasks, parsed.dependencies) == ((), (), ())


def test_only_regular_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "nothing.yaml").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert load([tmp_path]) == LoadedSpecs()


def test_two_agents_of_one_name_and_stored_data_are_reported(tmp_path: Path) -> None:
    for file in ("1.yaml", "2.yaml"):
        (tmp_path / file).write_text(
            yaml.safe_dump(MINIMAL | {"deployment": {}}, sort_keys=False), encoding="utf-8"
        )
    loaded = load([tmp_path])
    (error,) = loaded.errors
    assert (Path(error.file).name, "already has an agent called a" in error.reason) == (
        "2.yaml",
        True,
    )
    assert (
        str(loaded.notes[0])
        == f"{tmp_path / '1.yaml'}, line 6: deployment is not a known key and has no effect"
    )
    with pytest.raises(InvalidRequest, match="does not exist"):
        load([tmp_path / "nowhere"])


def test_the_examples_are_valid_and_match_the_schema() -> None:
    loaded = load([ROOT / "agents"])
    assert not loaded.errors
    assert not loaded.notes
    order = (
        "security",
        "greeting",
        "build",
        "negative-numbers",
        "refactoring",
        "api",
        "handbook",
        "licences",
        "performance",
    )
    assert check_order(tuple(loaded.specs.values())) == order
    for path in (ROOT / "agents").iterdir():
        Draft202012Validator(schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_documented_capabilities_match_the_code_and_name_existing_tools() -> None:
    rows = [
        line
        for line in (ROOT / "docs/agents.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert rows == [
        f"| `{name}` | {', '.join(f'`{tool}`' for tool in tools)} |"
        for name, tools in CAPABILITIES.items()
    ]
    read, write = CAPABILITIES["filesystem-read"], CAPABILITIES["filesystem-write"]
    assert " ".join(read) == "files.read files.list files.search files.info files.diff"
    assert " ".join(write) == (
        "files.write files.append files.edit files.define files.delete files.mkdir"
    )
    assert " ".join(CAPABILITIES["git-read"]) == "git.status git.diff git.log"
    assert " ".join(CAPABILITIES["git-write"]) == "git.add git.commit git.branch git.checkout"
    families = {"web.*", "http.*", "browser.*", "db.*"}  # toolkits that a machine may have
    for tool in {tool for tools in CAPABILITIES.values() for tool in tools} - families:
        assert tool in CATALOGUE
    assert is_granted(Grant(tools_of(["cargo-execution"])), "tests.cargo")
    assert not is_granted(Grant(tools_of(["cargo-execution"])), "tests.pytest")
