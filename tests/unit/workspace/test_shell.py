"""`code.shell` in a real sandbox: its folder, output, time limit and git."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from moothall.domain.repository import Prepared
from moothall.domain.tool import ToolResult, ToolStatus
from moothall.workspace.prepare import Preparer
from moothall.workspace.workspace import OverlayWorkspace
from support.local import PYTEST, Local, in_pods, local, on_nodes, python
from support.repos import SAMPLE, SOLUTION, Repo

pytestmark = pytest.mark.e2e  # real sandboxes over and over: run with the end-to-end tests

SECRET = "the-word-of-another-branch"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(tmp_path, SAMPLE) as app:
        yield app


@pytest.fixture
async def prepared(app: Local) -> Prepared:
    return await app.prepared({"tests": PYTEST})


@pytest.fixture
async def workspace(app: Local, prepared: Prepared) -> AsyncIterator[OverlayWorkspace]:
    async with app.workspaces.open(prepared, "one") as workspace:
        yield workspace


async def shell(
    app: Local, workspace: OverlayWorkspace, command: str, seconds: float = 60, **options: object
) -> ToolResult:
    return await app.call(workspace, "code.shell", seconds=seconds, command=command, **options)


async def output_of(app: Local, workspace: OverlayWorkspace, command: str) -> str:
    result = await shell(app, workspace, command)
    assert result.status is ToolStatus.SUCCESS, (result.status, result.error)
    return str(result.output["output"])


async def test_the_working_folder_persists_between_commands(
    app: Local, workspace: OverlayWorkspace
) -> None:
    first = await shell(app, workspace, "A=1; cd src && cd ../tests")
    assert first.output == {"exit_code": 0, "output": "", "working_directory": "/workspace/tests"}
    assert (
        await output_of(app, workspace, "pwd; echo [$A]; ls")
        == "/workspace/tests\n[]\ntest_utils.py\n"
    )
    failed = await shell(app, workspace, "cd /tmp; exit 3")
    assert failed.output == {"exit_code": 3, "output": "", "working_directory": "/tmp"}
    back = await shell(app, workspace, "pwd; cd /workspace")
    assert back.output == {"exit_code": 0, "output": "/tmp\n"}


async def test_a_missing_folder_is_reported(app: Local, workspace: OverlayWorkspace) -> None:
    await shell(app, workspace, "mkdir -p a/b && cd a/b && rm -r /workspace/a")
    result_after = await shell(app, workspace, "pwd")
    assert result_after.output["output"] == "/workspace\n"
    await shell(app, workspace, "mkdir c && cd c")
    await shell(app, workspace, "rm -r /workspace/c", session="other")
    result_in_removed = await shell(app, workspace, "pwd")
    assert result_in_removed.output == {
        "exit_code": 0,
        "output": "/workspace\n",
        "note": "/workspace/c is gone; the command ran in /workspace",
    }


async def test_an_obstructed_folder_file_does_no_harm(
    app: Local, workspace: OverlayWorkspace
) -> None:
    for left in (
        "mkfifo /tmp/moothall/folder",
        "mkdir /tmp/moothall/folder",
        "echo relative > /tmp/moothall/folder",
    ):
        await shell(app, workspace, f"trap - EXIT; rm -rf /tmp/moothall/folder; {left}")
        assert await output_of(app, workspace, "pwd") == "/workspace\n"
        await shell(app, workspace, "rm -rf /tmp/moothall")
    assert await output_of(app, workspace, "cd src; pwd") == "/workspace/src\n"


async def test_an_error_names_the_line_of_the_command(
    app: Local, workspace: OverlayWorkspace
) -> None:
    assert (
        await output_of(app, workspace, "true\nmissing-program\n")
        == "bash: line 2: missing-program: command not found\n"
    )
    assert "bash: eval: line 3: syntax error" in await output_of(app, workspace, "true\nif\n")


async def test_a_command_over_its_time_limit_is_reported_with_its_output(
    app: Local, workspace: OverlayWorkspace
) -> None:
    stopped = await shell(
        app, workspace, "cd src; echo begun; sleep 60; echo never", seconds=2, timeout_seconds=2
    )
    assert stopped.status is ToolStatus.TIMEOUT
    assert stopped.output["output"] == "begun\n"
    assert stopped.error == (
        "the command was stopped after 2 s; timeout_seconds gives a command up to 600 s "
        "(workspace.check_seconds). What it printed until then is in the output"
    )


async def test_a_hanging_program_is_interrupted_and_shows_its_traceback(
    app: Local, workspace: OverlayWorkspace
) -> None:
    hangs = (
        "import time\ndef wait_for_nothing():\n    time.sleep(60)\nprint('begun')\n"
        "wait_for_nothing()\n"
    )
    await app.call(workspace, "files.write", path="hangs.py", content=hangs)
    stopped = await shell(app, workspace, "python3 hangs.py", seconds=2)
    assert stopped.status is ToolStatus.TIMEOUT
    assert "begun\nTraceback" in stopped.output["output"]
    assert "in wait_for_nothing" in stopped.output["output"]
    deaf = await shell(app, workspace, "trap '' INT; echo deaf; sleep 60", seconds=2)
    assert (deaf.status, deaf.output["output"]) == (ToolStatus.TIMEOUT, "deaf\n")
    assert await output_of(app, workspace, "echo still here") == "still here\n"


async def test_a_program_can_interrupt_itself(app: Local, workspace: OverlayWorkspace) -> None:
    code = (
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT); print('nothing')\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    await app.call(workspace, "files.write", path="own.py", content=code)
    assert await output_of(app, workspace, "python3 own.py") == "interrupted\n"


async def test_long_output_is_stored_in_a_readable_file(
    app: Local, workspace: OverlayWorkspace
) -> None:
    visible = await output_of(app, workspace, "seq 100000")
    assert (
        visible.startswith("1\n2\n"),
        visible.endswith("\n99999\n100000\n"),
        len(visible) < 20_000,
    ) == (True, True, True)
    path = visible.partition("all of it is in ")[2].partition(" ")[0]
    assert path.startswith("/tmp/")
    assert (
        await output_of(app, workspace, f"sed -n 50000p {path}; wc -l < {path}")
        == "50000\n100000\n"
    )
    assert (await workspace.patch("none")).diff == ""


async def test_old_output_files_are_deleted(app: Local, workspace: OverlayWorkspace) -> None:
    for _ in range(12):
        await output_of(app, workspace, "seq 10000")
    assert (await output_of(app, workspace, "ls /tmp/moothall/output-* | wc -l")).strip() == "10"


async def test_a_command_with_endless_output_is_stopped_with_the_reason(
    app: Local, workspace: OverlayWorkspace
) -> None:
    stopped = await shell(app, workspace, "yes")
    assert (stopped.status, stopped.output["output"][:4]) == (ToolStatus.OUTPUT, "y\ny\n")
    assert "the limit of output" in stopped.error
    size = await output_of(app, workspace, "stat -c %s /tmp/moothall/output-1.txt")
    assert int(size) <= 10_000_000


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000 &",
        "nohup sleep 1000 > /dev/null 2>&1 &",
        "setsid -f sleep 1000",
        "sleep 1000 & disown -a",
        "(sleep 1000 &) ",
    ],
)
async def test_background_processes_end_with_their_command(
    app: Local, workspace: OverlayWorkspace, command: str
) -> None:
    pid = workspace.pid
    result = await shell(app, workspace, command)
    assert (result.status, result.output["ended_processes"]) == (ToolStatus.SUCCESS, ["sleep 1000"])
    running = await app.call(workspace, "system.processes")
    assert len(running.output["processes"]) == 1
    assert workspace.pid == pid
    assert await output_of(app, workspace, "pgrep sleep || echo none") == "none\n"


async def test_background_parts_of_a_command_are_named_once(
    app: Local, workspace: OverlayWorkspace
) -> None:
    result = await shell(
        app, workspace, "(while :; do sleep 0.01; done) & (while :; do sleep 0.01; done) &"
    )
    assert "bash, a part of the command" in result.output["ended_processes"]
    assert len(result.output["ended_processes"]) <= 2


async def test_output_of_a_process_that_ends_slightly_later_is_complete(
    app: Local, workspace: OverlayWorkspace
) -> None:
    result = await shell(app, workspace, "seq 3 > >(tee copy.txt)")
    assert result.output == {"exit_code": 0, "output": "1\n2\n3\n"}


def history(tmp_path: Path) -> Repo:
    """Add commits to the sample, and a branch that must stay hidden."""
    repo = Repo(tmp_path / "repo")
    repo.git("checkout", "--quiet", "-b", "hidden")
    repo.commit({"secret.txt": SECRET}, SECRET)
    repo.git("tag", "-a", "secret-tag", "-m", SECRET)
    repo.git("checkout", "--quiet", "main")
    repo.commit({"src/utils.py": SAMPLE["src/utils.py"] + "\n\nWORD = 1\n"}, "add a word")
    repo.git("tag", "-a", "v1.0", "-m", "a release")
    repo.commit({"README.md": "# Sample\n"}, "shorten the text")
    repo.git("config", "remote.origin.url", "https://name:password@example.org/repo.git")
    for name in ("post-checkout", "pre-commit", "post-index-change"):
        hook = repo.path / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ntouch /workspace/HOOK /tmp/HOOK\n")
        hook.chmod(0o755)
    return repo


async def with_history(app: Local, tmp_path: Path) -> Prepared:
    repo = history(tmp_path)
    for ref in ("refs/heads/hidden", "refs/heads/main"):
        app.sha = await app.clone.fetch(str(repo.path), ref, tags=True)
    return await app.prepared({"tests": PYTEST})


@pytest.mark.parametrize("kind", [local, in_pods, on_nodes])
async def test_git_shows_the_history(
    tmp_path: Path, kind: Callable[..., AbstractAsyncContextManager[Local]]
) -> None:
    async with kind(tmp_path, SAMPLE) as app:
        prepared = await with_history(app, tmp_path)
        async with app.workspaces.open(prepared, "one") as workspace:
            assert await output_of(app, workspace, "git status --short; git log --format=%s") == (
                "shorten the text\nadd a word\nfirst\n"
            )
            assert (
                await output_of(app, workspace, "git describe; git branch")
                == "v1.0-1-g" + app.sha[:7] + "\n* work\n"
            )
            blamed = await output_of(
                app, workspace, "cd src; git blame -s utils.py | tail -1; git grep -n WORD v1.0"
            )
            assert blamed.splitlines()[0].endswith("WORD = 1")
            assert blamed.splitlines()[1].endswith("utils.py:9:WORD = 1")
            await app.call(workspace, "files.append", path="src/utils.py", content=SOLUTION)
            await app.call(workspace, "files.write", path="new.txt", content="new\n")
            assert await output_of(
                app, workspace, "git status --short --untracked-files=all /workspace"
            ) == (" M utils.py\n?? ../new.txt\n")
            assert "+def hello_world() -> str:" in await output_of(
                app, workspace, "git diff; git show HEAD~1 --stat | cat"
            )
            stashed = await output_of(
                app,
                workspace,
                "git stash && grep -c hello_world utils.py; git stash pop && grep -c hello_world "
                "utils.py",
            )
            assert stashed.splitlines()[1] == "0"
            assert stashed.splitlines()[-1] == "1"
            assert (await workspace.patch("all")).paths == ("new.txt", "src/utils.py")


async def test_hooks_remotes_and_other_branches_are_not_visible(app: Local, tmp_path: Path) -> None:
    prepared = await with_history(app, tmp_path)
    async with app.workspaces.open(prepared, "one") as workspace:
        git_output = await output_of(
            app,
            workspace,
            "git commit -q --allow-empty -m x && git checkout -q HEAD~1 && git checkout -q work; "
            "ls -a / /tmp /workspace",
        )
        assert "HOOK" not in git_output
        assert (
            await output_of(
                app,
                workspace,
                "git remote -v; git config --get-regexp 'remote|credential|url'; git tag",
            )
            == "v1.0\n"
        )
        script = (
            "git cat-file --batch-all-objects --batch | strings; cat "
            "/opt/history/history.git/packed-refs; git log --all"
        )
        assert SECRET not in await output_of(app, workspace, script)
        hidden = Repo(tmp_path / "repo").git("rev-parse", "hidden")
        hidden_commit = await shell(app, workspace, f"git show {hidden}")
        assert (
            hidden_commit.output["exit_code"],
            "bad object" in hidden_commit.output["output"],
        ) == (
            128,
            True,
        )
        result = await shell(
            app, workspace, "touch /opt/history/history.git/x; git -C /opt/history/history.git gc"
        )
        assert "Read-only file system" in result.output["output"]


async def test_git_data_is_in_no_patch_and_not_visible_to_checks(
    app: Local, tmp_path: Path
) -> None:
    check_for_git = python(
        "import os, subprocess, sys; sys.exit(os.path.lexists('.git') or subprocess.call(['git', "
        "'status']) == 0)"
    )
    repo_prepared = await with_history(app, tmp_path)
    prepared = await app.prepared({"looks": check_for_git})
    assert prepared.key == repo_prepared.key
    async with app.workspaces.open(prepared, "one") as workspace:
        assert await output_of(
            app,
            workspace,
            "test -e .git && git commit -qam x && git stash list; echo '*.py' > .git/info/exclude "
            "2>&1; true",
        )
        assert (await workspace.check("looks")).verdict == "passed"
        assert (await workspace.patch("none")).diff == ""
        assert (await app.call(workspace, "files.list")).output["entries"].count(".git") == 0
        await shell(
            app,
            workspace,
            "rm .git; git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit "
            "-qm x",
        )
        await shell(app, workspace, "mkdir -p sub && cd sub && git init -q . && echo x > y")
        assert (await workspace.patch("files")).paths == ("sub/y",)


async def test_programs_can_use_git_repositories_of_their_own(
    app: Local, workspace: OverlayWorkspace
) -> None:
    script = (
        "cd $(mktemp -d) && git init -q . && git config user.name a && git config user.email a@b "
        "&& touch f && git add f && git commit -qm own"
    )
    assert (
        await output_of(app, workspace, f"({script} && git log --format=%s && git remote)")
        == "own\n"
    )
    output = await output_of(
        app,
        workspace,
        "mkdir t && cd t && git init -q . && git rev-parse --show-toplevel && cd .. && git "
        "rev-parse --show-toplevel",
    )
    assert output == "/workspace/t\n/workspace\n"


async def test_changes_to_git_persist_between_commands(
    app: Local, workspace: OverlayWorkspace
) -> None:
    await output_of(app, workspace, "echo more >> README.md; git add README.md; git stash -q")
    assert "stash@{0}" in await output_of(app, workspace, "git stash list")
    assert (
        await output_of(app, workspace, "git stash pop -q; git status --short") == " M README.md\n"
    )
    await shell(app, workspace, "rm -rf /tmp/moothall")
    assert await output_of(app, workspace, "git status --short") == " M README.md\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives the folder to another: run as root")
async def test_git_works_in_a_workspace_owned_by_another_user(
    app: Local, workspace: OverlayWorkspace
) -> None:
    os.chown(workspace._executor.upper, 0, 0)
    workspace._executor.upper.chmod(0o777)
    assert await output_of(app, workspace, "git status --short; git log --format=%s") == "first\n"


async def test_a_command_may_take_longer_than_other_tools(tmp_path: Path) -> None:
    async with (
        local(tmp_path, SAMPLE, wall_seconds=0.5) as app,
        app.workspaces.open(await app.prepared(), "one") as workspace,
    ):
        assert await output_of(app, workspace, "sleep 1; echo done") == "done\n"


async def test_history_beyond_the_configured_length_is_left_out(tmp_path: Path) -> None:
    async with local(tmp_path, SAMPLE) as app:
        notes: list[str] = []
        repo = history(tmp_path)
        app.sha = await app.clone.fetch(str(repo.path), "refs/heads/main", tags=True)
        preparer = Preparer(app.settings, lambda _: app.clone, app.workspaces, history_commits=2)
        prepared = await preparer.prepare(app.base(), notes.append)
        assert "git shows the newest 2 commits in workspaces" in notes
        async with app.workspaces.open(prepared, "one") as workspace:
            assert (
                await output_of(app, workspace, "git log --format=%s; git fsck 2>&1")
                == "shorten the text\nadd a word\n"
            )


async def test_a_missing_history_is_exported_again(app: Local) -> None:
    prepared = await app.prepared()
    folder = app.workspaces.pool.layout.history(prepared.key)
    folder.rename(folder.with_name("gone"))
    await app.prepared()
    async with app.workspaces.open(prepared, "one") as workspace:
        assert await output_of(app, workspace, "git log --format=%s") == "first\n"


async def test_without_history_the_shell_works_without_git(tmp_path: Path) -> None:
    async with local(tmp_path, SAMPLE) as app:
        prepared = await app.prepared()
        folder = app.workspaces.pool.layout.history(prepared.key)
        folder.rename(folder.with_name("gone"))
        async with app.workspaces.open(prepared, "one") as workspace:
            assert "not a git repository" in await output_of(
                app, workspace, "ls -a; git status 2>&1"
            )
