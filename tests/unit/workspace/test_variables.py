"""Versions resolved by the set-up stay in force when a check calls its package manager."""

from __future__ import annotations

from pathlib import Path

from moothall.config import Settings
from moothall.workspace.executor_client import ExecutorSetup
from moothall.workspace.pool import LocalExecutor


def variables(folder: Path, *programs: str, venv: bool = False, rc: str = "") -> dict[str, str]:
    env, tree = folder / "env", folder / "tree"
    for created in (env / "bin", tree / ".venv" if venv else tree):
        created.mkdir(parents=True)
    for name in programs:
        (env / "bin" / name).symlink_to("nowhere")
    (tree / ".npmrc").write_text(rc, encoding="utf-8")
    place = ExecutorSetup("key", (tree,), env=env)
    return LocalExecutor(place, folder / "box", Settings(data_dir=folder), folder, ()).variables()


def test_package_managers_keep_to_the_versions_of_the_set_up(tmp_path: Path) -> None:
    environment = variables(tmp_path, "pnpm", "yarn")
    assert environment["COREPACK_ENABLE_NETWORK"] == "0"
    assert environment["COREPACK_HOME"] == "/env/corepack"
    assert environment["YARN_NODE_LINKER"] == "node-modules"
    assert environment["COREPACK_ROOT"] == "/env/corepack"
    assert "npm_config_verify_deps_before_run" not in environment, "npm warns of it"
    assert environment["pnpm_config_verify_deps_before_run"] == "false"
    assert (
        environment["UV_NO_SYNC"],
        environment["UV_OFFLINE"],
        environment["UV_PROJECT_ENVIRONMENT"],
    ) == (
        "1",
        "1",
        "/env",
    )


def test_npm_does_not_get_the_variables_of_pnpm(tmp_path: Path) -> None:
    assert not [
        name
        for name in variables(tmp_path)
        if "manage_package" in name or name in {"COREPACK_ROOT", "YARN_NODE_LINKER"}
    ]


def test_pnpm_does_not_install_before_it_runs(tmp_path: Path) -> None:
    environment = variables(tmp_path, "pnpm", rc="verify-deps-before-run=install\n")
    assert environment["npm_config_verify_deps_before_run"] == "false"


def test_a_uv_environment_created_by_set_up_is_kept(tmp_path: Path) -> None:
    assert "UV_PROJECT_ENVIRONMENT" not in variables(tmp_path, venv=True)


def test_git_has_an_address_for_commits_in_repositories_that_tests_create(tmp_path: Path) -> None:
    assert variables(tmp_path)["EMAIL"] == "agent@localhost"
