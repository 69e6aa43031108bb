"""Files of agents: every shape loads, and what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft202012Validator

from moothall.agents.capabilities import CAPABILITIES, tools_of
from moothall.agents.loading import check_order, load
from moothall.agents.order import of_tasks
from moothall.agents.specs import Spec, schema
from moothall.domain.tool import Grant
from moothall.errors import InvalidRequest
from moothall.tools.catalogue import CATALOGUE, is_granted

ROOT = Path(__file__).parents[3]
MINIMAL: dict[str, Any] = {"metadata": {"name": "a"}, "objectives": [{"description": "x", "validation": "make x"}]}


def spec(**more: Any) -> Spec:
    data = MINIMAL | more
    Draft202012Validator(schema()).validate(data)
    return Spec.model_validate(data)


@pytest.mark.parametrize(
    "written",
    [
        {"build": "100%", "time": 30},
        [{"build": "100%"}, {"time": 30}],
        [{"name": "build", "target": "100%", "unit": "share"}, {"name": "time", "target": 30}],
        [{"build": "100%", "time": 30}],
    ],
)
def test_metrics_in_every_shape(written: Any) -> None:
    assert [(one.name, one.target) for one in spec(reporting={"metrics": written}).reporting.metrics] == [
        ("build", "100%"),
        ("time", "30"),
    ]


@pytest.mark.parametrize(
    "written",
    [
        {"b": "its types", "c": None},
        {"required": {"b": "its types"}, "optional": ["c"]},
        {"required": [{"b": "its types"}], "optional": {"c": None}},
        ["b", "c"],
        [{"b": "its types"}, "c"],
        [{"name": "b", "why": "its types"}, {"name": "c"}],
    ],
)
def test_dependencies_in_every_shape(written: Any) -> None:
    found = spec(dependencies=written).dependencies
    assert [one.name for one in found] == ["b", "c"]
    assert found[0].optional is False
    assert found[1].optional == (isinstance(written, dict) and "optional" in written)


def test_measures_and_what_is_unknown_is_kept() -> None:
    limits = {"max_memory": "512MB", "max_cpu": "75%", "timeout": "2h", "max_disk": "1GB"}
    made = spec(
        security={"resource_limits": limits}, deployment={"region": "eu"}, capabilities={"primary": ["yaml"], "secondary": ["c"]}
    )
    found = made.security.resource_limits
    assert (found.max_memory, found.max_cpu, found.timeout) == (512e6, 75, 7200)
    assert made.model_extra == {"deployment": {"region": "eu"}}
    assert made.capabilities == ("primary: yaml", "secondary: c")


def test_tasks_come_in_the_order_of_their_dependencies_and_priorities() -> None:
    tasks = {
        "default": [
            {"name": "last", "description": "c", "dependencies": ["first"], "priority": "critical"},
            {"name": "first", "description": "a"},
        ],
        "conditional": [{"description": "only then", "condition": "it rains", "priority": "low"}],
    }
    made = spec(tasks=tasks)
    told = made.told(of_tasks(made.tasks))
    assert told.index("- a") < told.index("- c") < told.index("- only then (only if: it rains)")
    assert "x (validated by: make x)" in told


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            "metadata: {name: a}\nobjectives:\n- description: x\n  validation: v\nspec:\n  priority: urgent\n",
            6,
            "spec.priority: Input should be 'critical'",
        ),
        (
            "metadata:\n  name: Not An Id\nobjectives:\n- {description: x, validation: v}\n",
            2,
            "metadata.name: a name is small letters, digits and dashes, at most 63",
        ),
        ("metadata: {name: a}\nobjectivs: []\n", 1, "'objectivs' is not known here; did you mean objectives?"),
        ("metadata: {name: a}\nobjectives:\n- description: x\n", 1, "no objective has a validation: give a command"),
        (
            "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  sandbox: false\n",
            5,
            "security.sandbox: Input should be True",
        ),
        (
            "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  capabilities_required:\n  - filesystem-reed\n",
            6,
            "unknown capability 'filesystem-reed'; did you mean filesystem-read?",
        ),
        (
            "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\nsecurity:\n  resource_limits:\n    timeout: soon\n",
            6,
            "'soon' is no such measure; write it as in \"2h\"",
        ),
        (
            "metadata: {name: a}\nobjectives:\n- {description: x, validation: v}\ntasks:\n- {name: a, description: d, dependencies: [b]}\n",
            4,
            "a needs b, and there is none of that name",
        ),
        ("metadata: {name: a}\nmetadata: {name: b}\n", 2, "metadata is said a second time"),
        ("a: [\n", 2, "it is no YAML"),
        ("a: &x 1\nb: *x\n", 0, "it has an alias"),
        ("just words\n", 0, "it is no map of sections"),
        ("- " * 20_000, 0, "it is no YAML"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "it is no YAML"),
    ],
)
def test_a_bad_file_is_named_with_line_and_reason_while_the_others_load(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    (tmp_path / "good.yaml").write_text(yaml.safe_dump(MINIMAL | {"metadata": {"name": "good"}}), encoding="utf-8")
    (tmp_path / "wrong.yml").write_text(text, encoding="utf-8")
    loaded = load([tmp_path])
    assert [one.name for one in loaded.specs.values()] == ["good"]
    (wrong,) = loaded.wrong
    assert (wrong.file, wrong.line) == (str(tmp_path / "wrong.yml"), line)
    assert reason in wrong.reason


def test_two_agents_of_one_name_and_what_is_kept_are_told(tmp_path: Path) -> None:
    for file in ("1.yaml", "2.yaml"):
        (tmp_path / file).write_text(yaml.safe_dump(MINIMAL | {"deployment": {}}, sort_keys=False), encoding="utf-8")
    loaded = load([tmp_path])
    (wrong,) = loaded.wrong
    assert (Path(wrong.file).name, "has an agent called a already" in wrong.reason) == ("2.yaml", True)
    assert str(loaded.kept[0]) == f"{tmp_path / '1.yaml'}, line 6: deployment is kept, and nothing is done by it"
    with pytest.raises(InvalidRequest, match="is not there"):
        load([tmp_path / "nowhere"])


def test_the_examples_are_right_and_the_schema_allows_them() -> None:
    loaded = load([ROOT / "agents"])
    assert not loaded.wrong
    assert not loaded.kept
    order = ("security", "greeting", "build", "negative-numbers", "refactoring", "api", "handbook", "licences", "performance")
    assert check_order(tuple(loaded.specs.values())) == order
    for path in (ROOT / "agents").iterdir():
        Draft202012Validator(schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_table_of_capabilities_is_published_and_names_tools_that_there_are() -> None:
    rows = [line for line in (ROOT / "docs/agents.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {', '.join(f'`{tool}`' for tool in tools)} |" for name, tools in CAPABILITIES.items()]
    families = {"web.*", "http.*", "browser.*", "db.*"}  # of toolkits that a machine may have
    for tool in {tool for tools in CAPABILITIES.values() for tool in tools} - families:
        assert tool in CATALOGUE
    assert is_granted(Grant(tools_of(["cargo-execution"])), "tests.cargo")
    assert not is_granted(Grant(tools_of(["cargo-execution"])), "tests.pytest")
