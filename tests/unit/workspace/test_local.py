from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from moothall.config import WorkspaceSettings
from moothall.deliberation.prompts.excerpts import RepoMapper, RepoMapRequest
from moothall.domain.evidence import Verdict
from moothall.domain.repository import Base, Prepared, Profile
from moothall.domain.tool import ToolStatus
from moothall.errors import PatchRefused, WorkspaceFailed
from moothall.repositories.git_objects import Change
from moothall.repositories.patch_rules import FILE
from moothall.repositories.service import RepositoryService
from moothall.sandbox import orphans
from moothall.workspace.workspace import OverlayWorkspace, OverlayWorkspaces
from support.local import PYTEST, Local, in_pods, local, on_nodes, python
from support.processes import command_line, descendants
from support.repos import SAMPLE, SOLUTION, Repo

pytestmark = pytest.mark.e2e  # real sandboxes over and over: run with the end-to-end tests

UTILS, TESTS = "src/utils.py", "tests/test_utils.py"
CHECKS = {"tests": PYTEST}
FILES = {**SAMPLE, "pkg/one.txt": "1\n", "pkg/two.txt": "2\n", "run.sh": "echo\n"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(tmp_path, FILES) as app:
        yield app


@pytest.fixture
async def prepared(app: Local) -> Prepared:
    return await app.prepared(CHECKS, protected=("tests/**", "conftest.py"))


async def run_code(app: Local, prepared: Prepared, code: str, *, name: str = "probe") -> Any:
    """Run Python code in a fresh workspace and return it with the run."""
    ready = replace(
        prepared, base=replace(prepared.base, profile=Profile(checks={"run": python(code)}))
    )
    async with app.workspaces.open(ready, name) as workspace:
        return await workspace.check("run")


async def test_a_failing_test_is_fixed_by_a_patch_that_passes_a_clean_check(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        run_before = await workspace.check("tests")
        assert (run_before.verdict, run_before.cases[f"{TESTS}::test_hello_world"]) == (
            Verdict.FAILED,
            "failed",
        )
        edit = await app.call(workspace, "files.append", path=UTILS, content=SOLUTION)
        assert edit.status is ToolStatus.SUCCESS
        tests = await app.call(workspace, "tests.pytest", keyword="hello_world")
        assert tests.output["verdict"] == "passed"
        assert tests.output["passed"] == 1
        assert tests.usage.cpu_ms > 0
        assert tests.usage.max_rss_bytes > 1_000_000
        patch = await workspace.patch("Add hello_world()")
    assert patch.paths == (UTILS,)
    async with app.workspaces.open(prepared, "clean", patch=patch.diff, judged=True) as workspace:
        assert (await workspace.check("tests", [TESTS])).verdict is Verdict.PASSED
        assert (await workspace.check("nothing")).verdict is Verdict.MISSING


async def test_base_tests_in_a_large_code_file_are_restored(tmp_path: Path) -> None:
    tests = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() { assert_eq!(super::f(), 2); }\n}\n"
    padding = (
        "// much\n" * 150_000
    )  # more than a megabyte, so that a file cut at a limit would have no tests
    async with local(
        tmp_path, {**FILES, "src/lib.rs": f"pub fn f() -> u8 {{ 1 }}\n{padding}{tests}"}
    ) as app:
        prepared = await app.prepared()
        forged = tests.replace("assert_eq!(super::f(), 2)", "")
        forged_change = Change(
            "src/lib.rs", FILE, f"pub fn f() -> u8 {{ 2 }}\n{padding}{forged}".encode()
        )
        patch = await app.clone.commit_changes(app.sha, [forged_change], "forge")
        for _ in range(2):  # applying the diff again gives the same commit
            async with app.workspaces.open(
                prepared, "judged", patch=patch.diff, judged=True
            ) as workspace:
                (change,) = await workspace.changes()
                assert change.content == f"pub fn f() -> u8 {{ 2 }}\n{padding}{tests}".encode()


@pytest.mark.parametrize(
    ("path", "text", "name", "content", "expected"),
    [
        (
            "a.py",
            ("class A:\n    def f(self):\n        return 1\n"),
            "A.f",
            "def f(self):\n    return 2",
            ("class A:\n    def f(self):\n        return 2\n"),
        ),
        (
            "a.js",
            "class A { f() { return 1; } }\n",
            "A.f",
            "f() { return 2; }",
            "class A { f() { return 2; } }\n",
        ),
        (
            "a.tsx",
            "const f = (): number => 1;\n",
            "f",
            "const f = (): number => 2;",
            "const f = (): number => 2;\n",
        ),
        (
            "a.go",
            ("package a\n\nfunc (t *T) F() int { return 1 }\n"),
            "(*T).F",
            ("func (t *T) F() int { return 2 }"),
            ("package a\n\nfunc (t *T) F() int { return 2 }\n"),
        ),
        (
            "a.rs",
            "impl A {\n    fn f() -> u8 { 1 }\n}\n",
            "A::f",
            "fn f() -> u8 { 2 }",
            ("impl A {\n    fn f() -> u8 { 2 }\n}\n"),
        ),
    ],
)
async def test_the_grammars_are_available_in_the_sandbox(
    app: Local, prepared: Prepared, *, path: str, text: str, name: str, content: str, expected: str
) -> None:
    async with app.workspaces.open(prepared, "one") as workspace:
        await app.call(workspace, "files.write", path=path, content=text)
        definition = await app.call(
            workspace, "files.define", path=path, name=name, content=content
        )
        assert (definition.status, definition.error) == (ToolStatus.SUCCESS, "")
        assert definition.output["replaced"]
        assert (await app.call(workspace, "files.read", path=path)).output["content"] == expected


async def test_a_repo_map_is_built_in_the_sandbox(app: Local, prepared: Prepared) -> None:
    repo_map = await RepoMapper(app.workspaces).survey(
        prepared, RepoMapRequest(frames=((UTILS, 2),), words=("greet",), map_chars=500)
    )
    assert f"{UTILS}:" in repo_map.map
    assert [span.path for span in repo_map.spans] == [UTILS]


async def test_workspaces_do_not_see_each_other(app: Local, prepared: Prepared) -> None:
    async with (
        app.workspaces.open(prepared, "a") as first_workspace,
        app.workspaces.open(prepared, "b") as second_workspace,
    ):
        await app.call(first_workspace, "files.write", path=UTILS, content="mine = 1\n")
        assert (
            "mine"
            not in (await app.call(second_workspace, "files.read", path=UTILS)).output["content"]
        )
        assert not (await second_workspace.patch("nothing")).diff


async def test_reading_a_folder_reports_its_entries(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "a") as workspace:
        listing = await app.call(workspace, "files.read", path="src")
    assert (listing.status, listing.error) == (ToolStatus.ERROR, "'src' is a folder, not a file")
    assert "utils.py" in listing.output["entries"]


async def test_every_kind_of_change_is_part_of_the_patch(app: Local, prepared: Prepared) -> None:
    code = """
import os, shutil
os.chmod('run.sh', 0o755)
open('src/utils.py', 'a').close()
os.utime('src/utils.py')
shutil.rmtree('pkg'); os.mkdir('pkg'); open('pkg/three.txt', 'w').write('3')
os.rename('README.md', 'READ.md')
shutil.rmtree('tests'); open('tests', 'w').write('a file now')
os.symlink('run.sh', 'link')
os.makedirs('src/__pycache__'); open('src/__pycache__/x.pyc', 'w').write('x')
open('trace.log', 'w').write('ignored by .gitignore')
os.mkdir('closed'); open('closed/f', 'w').write('f'); os.chmod('closed/f', 0); os.chmod('closed', 0)
"""
    async with app.workspaces.open(prepared, "all") as workspace:
        await app.call(workspace, "files.write", path="x.py", content=code)
        answer = await workspace._executor.request(
            "run", wall_seconds=10, argv=python("exec(open('x.py').read())"), env={}
        )
        assert answer["exit_code"] == 0, answer["output"]
        await app.call(workspace, "files.delete", path="x.py")
        patch = await workspace.patch("all")
    changed = {
        change.path: (change.mode, change.content)
        for change in await app.clone.changes(app.sha, patch.commit_sha)
    }
    assert {path: content for path, (_, content) in changed.items()} == {
        "README.md": None,
        "READ.md": SAMPLE["README.md"].encode(),
        "closed/f": b"f",
        "link": b"run.sh",
        "pkg/one.txt": None,
        "pkg/two.txt": None,
        "pkg/three.txt": b"3",
        "run.sh": b"echo\n",
        "tests": b"a file now",
        TESTS: None,
    }
    assert (changed["run.sh"][0], changed["link"][0]) == ("100755", "120000")
    async with app.workspaces.open(prepared, "again", patch=patch.diff) as workspace:
        assert (await app.call(workspace, "files.read", path="tests")).output[
            "content"
        ] == "a file now"
        assert (await workspace.patch("all")).diff == patch.diff


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.mkfifo('pipe')", "pipe"),
        ("import os; os.symlink('/etc/passwd', 'link')", "link"),
        (
            "import os; os.makedirs('.GIT/hooks'); open('.GIT/hooks/pre-commit', 'w').write('x')",
            r"\.GIT",
        ),
        ("open('big', 'wb').write(bytes(6_000_000))", "big"),
        ("import os\nfor n in range(150): os.mkdir('d'); os.chdir('d')\nopen('f', 'w')", "deeper"),
    ],
)
async def test_changes_that_no_patch_can_hold_are_refused(
    app: Local, prepared: Prepared, code: str, reason: str
) -> None:
    async with app.workspaces.open(prepared, "bad") as workspace:
        answer = await workspace._executor.request(
            "run", wall_seconds=10, argv=python(code), env={}
        )
        assert answer["exit_code"] == 0, answer["output"]
        with pytest.raises(PatchRefused, match=reason):
            await workspace.patch("bad")


@pytest.mark.parametrize("kind", [local, in_pods, on_nodes])
async def test_odd_entries_of_the_base_exist_and_only_their_changes_are_refused(
    tmp_path: Path, kind: Callable[..., AbstractAsyncContextManager[Local]]
) -> None:
    odd = os.fsdecode(b"odd\n\xff")
    async with kind(tmp_path, FILES) as app:
        repo = Repo(tmp_path / "repo")
        repo.write({odd: "odd\n", f"pkg/{odd}": "odd\n", "back\\slash": "odd\n"})
        for name, target in (
            ("null", "/dev/null"),
            ("out", "../sibling"),
            ("passwd", "/etc/passwd"),
        ):
            (repo.path / name).symlink_to(target)
        app.sha = await app.clone.fetch(str(repo.path), repo.commit())
        prepared = await app.prepared()
        assert odd not in prepared.files
        assertions = f"""
import os
assert all(open(name).read() == 'odd\\n' for name in ({odd!r}, {f"pkg/{odd}"!r}, 'back\\\\slash'))
assert os.readlink('null') == '/dev/null' and open('null').read() == '' and os.readlink('out') == '../sibling'
os.utime({odd!r})
open('new.txt', 'w').close()
"""  # noqa: E501 - a line of embedded text
        run = "import shutil, os; "
        for code, refused in (
            (assertions, ""),
            (f"import os; os.unlink({odd!r})", "odd"),
            (f"import os; os.rename({odd!r}, 'plain.txt')", "odd"),
            ("import shutil; shutil.rmtree('pkg')", "pkg/odd"),
            (f"open({odd!r}, 'w').write('changed')", "odd"),
            (f"{run}os.unlink('passwd'); shutil.copy('run.sh', 'passwd')", "passwd"),
            (
                f"{run}os.unlink('passwd'); os.mkdir('passwd'); shutil.copy('run.sh', 'passwd/x')",
                "passwd",
            ),
            (f"{run}os.symlink('out/x', 'deeper')", "deeper"),
        ):
            async with app.workspaces.open(prepared, "odd") as workspace:
                answer = await workspace._executor.request(
                    "run", wall_seconds=10, argv=python(code), env={}
                )
                assert answer["exit_code"] == 0, answer["output"]
                if refused:
                    with pytest.raises(PatchRefused, match=rf"may not change (where )?'{refused}"):
                        await workspace.patch("no")
                    await workspace.restore(())
                    assert await workspace.changes() == []
                else:
                    assert (await workspace.patch("yes")).paths == ("new.txt",)


async def test_only_the_test_files_of_an_extra_patch_are_used(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "author") as workspace:
        await app.call(
            workspace,
            "files.write",
            path="tests/test_more.py",
            content="def test_more():\n    assert True\n",
        )
        await app.call(workspace, "files.append", path=UTILS, content=SOLUTION)
        extra = await workspace.patch("tests and code")
    async with app.workspaces.open(prepared, "other", extra=extra.diff) as workspace:
        run = await workspace.check("tests", ["tests/test_more.py"])
        assert dict(run.cases) == {"tests/test_more.py::test_more": "passed"}
        assert (
            "hello_world"
            not in (await app.call(workspace, "files.read", path=UTILS)).output["content"]
        )


async def test_files_left_by_a_check_are_not_part_of_the_change(tmp_path: Path) -> None:
    leaves = python(
        "open('left.txt', 'w').write('x'); open('a.txt', 'a').write('more'); open('mine.txt', "
        "'a').write('more')"
    )
    async with local(tmp_path, {"a.txt": "a\n"}) as app:
        prepared = await app.prepared({"tests": leaves})
        async with app.workspaces.open(prepared, "leaves") as workspace:
            await workspace.write([Change("mine.txt", FILE, b"mine\n")])
            assert (await workspace.check("tests")).verdict == "passed"
            contents = {change.path: change.content for change in await workspace.changes()}
    assert contents == {"mine.txt": b"mine\n"}


async def test_a_check_without_tests_is_missing(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "none") as workspace:
        await app.call(workspace, "files.delete", path=TESTS)
        assert (await workspace.check("tests")).verdict is Verdict.MISSING


async def test_git_tools_run_on_the_trusted_side(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "git") as workspace:
        await app.call(workspace, "files.append", path=UTILS, content=SOLUTION)
        assert (await app.call(workspace, "git.status")).output["changed"][0]["path"] == UTILS
        commit = await app.call(workspace, "git.commit", message="one")
        assert commit.status is ToolStatus.SUCCESS
        back = await app.call(workspace, "git.checkout", ref="HEAD~1")
        assert back.status is ToolStatus.SUCCESS, back.error
        assert (
            "hello_world"
            not in (await app.call(workspace, "files.read", path=UTILS)).output["content"]
        )
        checkout = await app.call(workspace, "git.checkout", ref="elsewhere")
        assert (checkout.status, "no commit" in checkout.error) == (ToolStatus.INVALID, True)
        assert (await app.call(workspace, "git.push", branch="work")).status is ToolStatus.BLOCKED


@pytest.mark.parametrize("tool", ["git.clone", "git.pull", "git.push"])
async def test_no_workspace_reaches_the_origin_of_hidden_tests(
    tmp_path: Path, app: Local, tool: str
) -> None:
    async def prepare(base: Base, _: Callable[[str], None] | None) -> Prepared:
        return Prepared(base, "key", ())

    repositories = RepositoryService(tmp_path / "trusted", WorkspaceSettings(), prepare)
    async with OverlayWorkspaces(
        app.settings, lambda _: app.clone, repositories.remote
    ) as workspaces:
        for hidden in ((), ("tests/hidden/**",)):
            prepared = await app.prepared(CHECKS, hidden=hidden)
            async with workspaces.open(prepared, "one") as workspace:
                await app.call(workspace, "files.append", path=UTILS, content=SOLUTION)
                await app.call(workspace, "git.commit", message="m")
                result = await app.call(
                    workspace, tool, branch="work", url="https://host.invalid/x.git"
                )
            assert ("has no access to other repositories" in str(result.error)) is bool(hidden), (
                result
            )


async def test_a_catastrophic_pattern_is_stopped_and_the_workspace_keeps_working(
    app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "regex") as workspace:
        await app.call(workspace, "files.write", path="a.txt", content="a" * 40 + "!\n")
        slow = await app.call(workspace, "files.search", seconds=0.6, pattern="(a+)+$")
        assert slow.status is ToolStatus.TIMEOUT
        assert (await app.call(workspace, "files.search", pattern="^a")).output["matches"]


async def test_the_environment_and_the_file_system_contain_no_secret(
    app: Local, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOOTHALL_LLM__API_KEY", "a-secret-key")
    run = await run_code(
        app,
        prepared,
        "import os, sys, pathlib\n"
        "print(dict(os.environ))\n"
        "for p in pathlib.Path('/proc').glob('*/environ'):\n"
        "    try: print(p.read_bytes())\n"
        "    except OSError: pass\n"
        f"print(os.path.exists({str(app.settings.data_dir)!r}), os.path.exists('/root/.ssh'), "
        "os.path.exists('/home'))\n",
    )
    assert "a-secret-key" not in run.output
    assert "False False False" in run.output


async def test_the_sandbox_cannot_reach_the_host(app: Local, prepared: Prepared) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        port = listener.getsockname()[1]
        run = await run_code(
            app,
            prepared,
            "import os, socket, ctypes\n"
            "def trial(what, act):\n"
            "    try: act()\n"
            "    except OSError as error: print(what, 'refused')\n"
            "    else: print(what, 'DONE')\n"
            f"trial('connect', lambda: socket.create_connection(('127.0.0.1', {port}), 1))\n"
            "trial('dns', lambda: socket.getaddrinfo('localhost.example', 80))\n"
            "for path in ('/usr/x', '/etc/x', '/x', '/opt/moothall/x', '/dev/x', "
            "'/proc/sys/kernel/core_pattern', '/workspace/../x'):\n"
            "    trial('write ' + path, lambda: open(path, 'w'))\n"
            "trial('setuid', lambda: os.setuid(0))\n"
            "trial('chroot', lambda: os.chroot('/tmp'))\n"
            "trial('kill init', lambda: os.kill(1, 9))\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "print('unshare', libc.unshare(0x10000000), 'mount', libc.mount(b'none', b'/tmp', "
            "b'tmpfs', 0, None))\n"
            "parent = os.getppid()\n"
            "trial('memory of the executor', lambda: open(f'/proc/{parent}/mem', 'rb+'))\n"
            "trial('descriptors of the executor', lambda: os.listdir(f'/proc/{parent}/fd'))\n"
            "print(sorted(os.listdir('/proc/self/fd')))\n",
        )
    lines = run.output.splitlines()
    assert [
        line for line in lines if line.endswith("DONE") and not line.startswith("kill init")
    ] == []
    assert "unshare -1 mount -1" in lines
    assert lines[-1] == "['0', '1', '2', '3']", (
        "only the standard streams and the descriptor of the listing itself"
    )


async def test_a_killed_executor_fails_the_workspace(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "dead") as workspace:
        os.kill(workspace.pid, signal.SIGKILL)
        with pytest.raises(WorkspaceFailed):
            await workspace.check("tests")
        with pytest.raises(WorkspaceFailed):
            await app.call(workspace, "files.read", path=UTILS)


@pytest.mark.parametrize("target", ["os.getppid()", "-os.getppid()", "-1", "1"])
async def test_code_cannot_kill_its_executor(app: Local, prepared: Prepared, target: str) -> None:
    run = await run_code(app, prepared, f"import os\nos.kill({target}, 9)")
    assert (run.status, run.exit_code) == ("success", 0 if target == "1" else 1), run.output
    assert target == "1" or "PermissionError" in run.output


@pytest.fixture
def unrelated_processes() -> list[psutil.Process]:
    """Child processes of this process that belong to other suites."""
    return psutil.Process().children()


def left_behind(app: Local, unrelated_processes: list[psutil.Process]) -> list[str]:
    """Return the leftover mounts and processes, except the spare one that an open pool keeps."""
    folder = str(app.settings.data_dir)
    mounts = [
        line
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        if folder in line
    ]
    new = [
        child
        for child in psutil.Process().children()
        if child not in unrelated_processes and orphans.__file__ not in command_line(child)
    ]
    commands = [
        command_line(process)[:80] for child in new for process in (child, *descendants(child.pid))
    ]
    return mounts + [command for command in commands if command]


async def test_a_closed_workspace_leaves_nothing_behind(
    unrelated_processes: list[psutil.Process], app: Local, prepared: Prepared
) -> None:
    async with app.workspaces.open(prepared, "daemon") as workspace:
        code = (
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: "
            "time.sleep(600)\n"
        )
        answer = await workspace._executor.request(
            "run", wall_seconds=10, argv=python(code), env={}
        )
        assert answer["exit_code"] == 0
        assert len(psutil.Process(workspace.pid).children(recursive=True)) == 2, (
            "bubblewrap's init and the executor"
        )
    assert left_behind(app, unrelated_processes) == []
    assert sorted(path.name for path in app.workspaces.pool.folder.iterdir()) == [
        "code",
        "lock",
    ]  # the pool's spare sandbox


async def test_a_cancelled_check_is_stopped_and_the_workspace_stays_usable(app: Local) -> None:
    prepared = await app.prepared({"sleep": python("import time; time.sleep(600)")})
    async with app.workspaces.open(prepared, "cancel") as workspace:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await workspace.check("sleep")
        assert (await app.call(workspace, "files.read", path=UTILS)).status is ToolStatus.SUCCESS


async def test_cancelling_all_seats_leaves_nothing_behind(
    unrelated_processes: list[psutil.Process], app: Local
) -> None:
    prepared = await app.prepared({"sleep": python("import time; time.sleep(600)")})

    async def seat(name: str) -> None:
        async with app.workspaces.open(prepared, name) as workspace:
            await workspace.check("sleep")

    async def all_seats() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(seat(f"seat-{number}"))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(all_seats(), 0.5)
    assert left_behind(app, unrelated_processes) == []


async def test_a_call_after_its_deadline_times_out(app: Local, prepared: Prepared) -> None:
    async with app.workspaces.open(prepared, "late") as workspace:
        assert (
            await app.call(workspace, "files.read", seconds=-1, path=UTILS)
        ).status is ToolStatus.TIMEOUT
        assert isinstance(workspace, OverlayWorkspace)


async def test_a_patch_that_does_not_apply_opens_no_workspace(
    unrelated_processes: list[psutil.Process], app: Local, prepared: Prepared
) -> None:
    opening = app.workspaces.open(
        prepared, "x", patch="--- a/nothing\n+++ b/nothing\n@@ -1 +1 @@\n-a\n+b\n"
    )
    with pytest.raises(PatchRefused):
        await opening.__aenter__()
    assert left_behind(app, unrelated_processes) == []


async def test_only_the_sandboxs_own_host_name_resolves(app: Local, prepared: Prepared) -> None:
    code = """
import socket
for name in (socket.gethostname(), 'localhost', socket.getfqdn()):
    assert socket.gethostbyname(name) == '127.0.0.1', name
with socket.create_server((socket.gethostname(), 0)) as server:
    socket.create_connection((socket.gethostname(), server.getsockname()[1])).close()
assert socket.gethostbyaddr('127.0.0.1')[0] == 'localhost'
try:
    socket.gethostbyname('example.org')
except OSError:
    pass
else:
    raise AssertionError('there is no other name')
"""
    run = await run_code(app, prepared, code)
    assert run.exit_code == 0, run.output


async def test_the_cases_of_a_check_with_too_much_output_are_read(
    app: Local, prepared: Prepared
) -> None:
    test = (
        "def test_loud(capfd):\n    with capfd.disabled():\n        for _ in range(800):\n        "
        "    print('x' * 50_000)\n\n"
        "def test_after():\n    assert False, 'told all the same'\n"
    )
    async with app.workspaces.open(prepared, "loud") as workspace:
        await app.call(workspace, "files.write", path="tests/test_loud.py", content=test)
        run = await workspace.check("tests", ["tests/test_loud.py"])
    assert (run.status, run.verdict) == ("success", Verdict.FAILED)
    assert run.cases == {
        "tests/test_loud.py::test_loud": "passed",
        "tests/test_loud.py::test_after": "failed",
    }
    assert "bytes cut" in run.output
    assert len(run.output) < 500_000


@pytest.mark.parametrize("option", ["-q", "-Werror"])
async def test_pytest_reports_no_warning_about_our_plugins(app: Local, option: str) -> None:
    prepared = await app.prepared({"tests": (*PYTEST, option, "-rw")})
    async with app.workspaces.open(prepared, "warnings") as workspace:
        run = await workspace.check("tests")
        tool = await app.call(workspace, "tests.pytest", paths=["tests/test_utils.py"])
    assert run.cases == {f"{TESTS}::test_greet": "passed", f"{TESTS}::test_hello_world": "failed"}
    assert "arning" not in run.output
    assert "arning" not in tool.output["output"]
