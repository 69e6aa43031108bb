from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from moothall.config import secret_values
from moothall.config.file import line_of
from moothall.errors import ConfigurationError
from moothall.settings import load_settings


def test_environment_variables_override_the_file_and_the_file_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.toml"
    file.write_text(
        'repository = "shop"\n[llm]\nmodel = "from-file"\nretries = 1\n', encoding="utf-8"
    )
    monkeypatch.setenv("MOOTHALL_LLM__MODEL", "from-environment")
    settings = load_settings(file)
    assert settings.repository == "shop"
    assert (settings.llm.model, settings.llm.retries) == ("from-environment", 1)
    assert settings.llm.temperature == 0.8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[llm]\nretrys = 1\n", "llm.retrys"),
        ("[llm]\nretries = -1\n", "llm.retries"),
        ("[llm\n", "is not TOML"),
        pytest.param("a = " + "[" * 60_000, "is not TOML", id="a nest of brackets"),
        ("[nothing]\n", "nothing"),
    ],
)
def test_an_invalid_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load_settings(file)


def test_mode_process_excludes_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOOTHALL_RAY__ADDRESS", "10.0.0.1:6379")
    assert load_settings().ray.mode == "auto"
    monkeypatch.setenv("MOOTHALL_RAY__MODE", "process")
    with pytest.raises(ConfigurationError, match=r"ray.*leave one of them out"):
        load_settings()


def test_an_invalid_setting_is_reported_with_its_line_and_a_similar_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.toml"
    file.write_text(
        "# mine\nrepository = 'r'\n\n[llm]\nmodel = 'x'\nbsae_url = 'u'\nretries = -1\n[secrets]\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("MOOTHALL_LIMITS__AGENTS", "0")
    with pytest.raises(ConfigurationError) as raised:
        load_settings(file)
    error = raised.value.message
    assert f"{file}, line 6: llm.bsae_url is not a setting; did you mean base_url?" in error
    assert f"{file}, line 7: llm.retries: " in error
    assert "; limits.agents: " in error, "the value is from the environment, so no line is named"


@pytest.mark.parametrize(
    ("text", "keys", "line"),
    [
        ("a = 1\n", ["a"], 1),
        ("[a]\nb = 1\n[c]\nb = 2\n", ["c", "b"], 4),
        ("x = 1\na.b = 2\n", ["a", "b"], 2),
        ('[ "a".b ] # here\nc=1\n', ["a", "b", "c"], 2),
        ("[a]\nb = 1\n", ["a", "nothing"], 1),
        ("[other]\n", ["a"], 1),
    ],
)
def test_the_line_of_a_setting_is_found(text: str, keys: list[str], line: int) -> None:
    assert line_of(text, keys) == line


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml"):
        load_settings(tmp_path / "absent.toml")


def test_a_secret_is_read_from_a_file_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-very-secret\n", encoding="utf-8")
    settings = load_settings(llm={"api_key_file": tmp_path / "key"})
    assert settings.llm.api_key is not None
    assert settings.llm.api_key.get_secret_value() == "sk-very-secret"
    assert "very-secret" not in settings.model_dump_json() + repr(settings)


def test_settings_can_be_pickled() -> None:
    settings = load_settings(repository="shop")
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes


def test_secret_values_are_read_from_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", "value-of-mine")
    (tmp_path / "more").write_text("one-of-many\nanother-one\n", encoding="utf-8")
    secrets = {"variables": ["MY_KEY", "NOT_SET"], "values_file": str(tmp_path / "more")}
    settings = load_settings(data_dir=tmp_path, secrets=secrets)
    assert {"value-of-mine", "one-of-many", "another-one"} <= set(secret_values(settings))
    assert "value-of-mine" not in settings.model_dump_json()
    with pytest.raises(ConfigurationError, match=r"secrets\.variables"):
        load_settings(data_dir=tmp_path, secrets={"variables": 3})


def test_workspaces_on_a_ray_cluster_need_its_address() -> None:
    with pytest.raises(ConfigurationError, match=r"so ray\.address must be set"):
        load_settings(workspace={"kind": "ray"})
    settings = load_settings(workspace={"kind": "ray"}, ray={"address": "10.0.0.1:6379"})
    assert settings.workspace.kind == "ray"


@pytest.mark.parametrize(
    ("url", "server", "user", "database"),
    [
        ("neo4j://127.0.0.1:7687", "neo4j://127.0.0.1:7687", "neo4j", "neo4j"),
        ("neo4j+s://ann%40x@db:7687/graph", "neo4j+s://db:7687", "ann@x", "graph"),
        ("bolt://[::1]:7687/?policy=near", "bolt://[::1]:7687?policy=near", "neo4j", "neo4j"),
    ],
)
def test_the_url_of_the_graph_names_its_user_and_database(
    url: str, server: str, user: str, database: str
) -> None:
    graph = load_settings(graph={"url": url}).graph
    assert (graph.server, graph.login, graph.database) == (server, user, database)


def test_the_user_of_the_graph_takes_precedence_over_that_in_its_url() -> None:
    graph = load_settings(graph={"url": "neo4j://ann@db:7687", "user": "bob"}).graph
    assert graph.login == "bob"


def test_a_password_in_the_url_of_the_graph_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"set graph\.password instead") as caught:
        load_settings(graph={"url": "neo4j://ann:very-secret@db:7687"})
    assert "very-secret" not in str(caught.value)
