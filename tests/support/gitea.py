"""A real Gitea for tests, on loopback: built once from its Go module into the user's cache, and run
with private files.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from moothall.config import environment
from support.cache import cached
from support.forge import REPOSITORY, TOKENS, Person, Place
from support.gobuilt import Missing, module
from support.repos import Repo, make_sample
from support.servers import free_port, running, wait_for

VERSION = "1.26.0"
"""The newest version whose modules are all available from the Go proxy."""
_BUILD_SECONDS, _START_SECONDS = 5400.0, 120.0
_SETTINGS = """I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
RUN_MODE = prod
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = http://127.0.0.1:{port}/
STATIC_ROOT_PATH = {static}
APP_DATA_PATH = {folder}/data
DISABLE_SSH = true
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = {folder}/gitea.db
[repository]
ROOT = {folder}/repositories
[security]
INSTALL_LOCK = true
SECRET_KEY = {secret}
INTERNAL_TOKEN = {secret}
[log]
LEVEL = Warn
ROOT_PATH = {folder}/log
[service]
DISABLE_REGISTRATION = true
[mailer]
ENABLED = false
[cron]
ENABLED = false
[actions]
ENABLED = false
"""


def gitea() -> Path:
    """Return the folder of Gitea: its program and its files. The first call builds it (52 minutes
    on two busy cores). Raises `Missing`.
    """
    return cached(f"gitea-{VERSION}", _build)


def _build(draft: Path) -> Path:
    source = module("code.gitea.io/gitea", VERSION)
    overlay, tree = draft / "overlay", draft / "source"
    # A module's own folder is read-only.
    shutil.copytree(source, tree, copy_function=shutil.copyfile)
    for name in ("templates", "options", "public"):
        shutil.copytree(tree / name, overlay / name)
    env = {**environment(), "GOFLAGS": "-mod=mod -buildvcs=false"}
    command = [
        "nice",
        "go",
        "build",
        "-tags",
        "sqlite sqlite_unlock_notify",
        "-o",
        str(overlay / "gitea"),
        ".",
    ]
    completed = subprocess.run(
        command,
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    if completed.returncode:
        raise Missing(
            f"no Gitea: go could not build it: {(completed.stdout + completed.stderr)[-600:]}"
        )
    return overlay


@contextmanager
def real_gitea(home: Path, folder: Path) -> Iterator[Place]:
    """Run Gitea until the context ends, with the people of `support.forge` and the sample as
    acme/app.
    """
    port = free_port()
    work = folder / "gitea"
    work.mkdir()
    settings = work / "app.ini"
    settings.write_text(
        _SETTINGS.format(port=port, folder=work, static=home, secret=secrets.token_hex(32)),
        encoding="utf-8",
    )
    base = [str(home / "gitea"), "--work-path", str(work), "--config", str(settings)]
    env = {**environment(), "GITEA_WORK_DIR": str(work), "HOME": str(work)}
    url = f"http://127.0.0.1:{port}"

    def run(*arguments: str) -> str:
        return subprocess.run(
            [*base, *arguments], env=env, check=True, capture_output=True, text=True, timeout=300
        ).stdout

    run("migrate")
    tokens = {}
    for login in ("acme", *TOKENS):
        person = (
            "--username",
            login,
            "--email",
            f"{login}@localhost.example",
            "--random-password",
            "--must-change-password=false",
        )
        run("admin", "user", "create", *person)
        output = run(
            "admin",
            "user",
            "generate-access-token",
            "--username",
            login,
            "--scopes",
            "all",
            "--raw",
        )
        tokens[login] = output.strip().splitlines()[-1]
    with running([*base, "web"], work / "log", env=env) as process:
        wait_for(partial(_answers, url), process, work / "log", _START_SECONDS)
        _fill(url, tokens, folder)
        yield Place(
            "gitea",
            url,
            f"{url}/api/v1",
            Repo(next((work / "repositories").glob(f"{REPOSITORY}.git"))),
            tokens,
        )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/version", timeout=5):  # noqa: S310 - loopback
            return True
    except (urllib.error.URLError, OSError):
        return False


def _fill(url: str, tokens: dict[str, str], folder: Path) -> None:
    """Give acme its repository with the sample, a label, and people with write or read access."""
    owner = Person(f"{url}/api/v1", tokens["acme"])
    owner.ask("POST", "/user/repos", name="app", default_branch="main")
    sample = make_sample(folder / "sample")
    sample.git(
        "push",
        "--quiet",
        f"http://acme:{tokens['acme']}@{url.removeprefix('http://')}/{REPOSITORY}.git",
        "HEAD:main",
    )
    for login, permission in (("moothall-bot", "admin"), ("ada", "write")):
        owner("PUT", f"/collaborators/{login}", permission=permission)
    owner("POST", "/labels", name="moothall", color="#112233")


def main() -> None:
    """Build Gitea into the user's cache, for people; print its folder."""
    argparse.ArgumentParser(prog="python -m support.gitea", description=main.__doc__).parse_args()
    try:
        sys.stdout.write(f"{gitea()}\n")
    except Missing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
