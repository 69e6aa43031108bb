"""Network access of a repository's set-up: the operator's package indexes, none of the operator's
secrets, and nothing of this machine.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from moothall.errors import RepositoryError
from moothall.workspace.prepare import Preparer
from moothall.workspace.toolchains import choose
from support.indexes import PASSWORD, TOKEN, Index, serving
from support.local import Local, local, python

pytestmark = pytest.mark.e2e

PIP = (
    "/env/bin/python",
    "-m",
    "pip",
    "install",
    "--no-input",
    "--disable-pip-version-check",
    "--retries",
    "0",
)
LOOK = f"""
import os, pathlib, sys
found = [name for name, value in os.environ.items() if any(secret in value for secret in {[PASSWORD, TOKEN]!r})]
for folder in ("/opt/config", "/env", "/tmp", "/workspace"):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in {[PASSWORD, TOKEN]!r}):
            found.append(str(path))
sys.exit(f"secrets in {{found}}" if found else 0)
"""  # noqa: E501 - a line of embedded text


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Local]:
    async with local(
        tmp_path, {"package.json": '{"dependencies":{"@acme/tool":"1.0.0"}}\n'}
    ) as app:
        yield app


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with serving(tmp_path) as index:
        yield index


@pytest.fixture
def operator(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The configuration of an operator whose indexes require credentials."""
    (tmp_path / "npmrc").write_text(
        f"@acme:registry=https://localhost:{index.port}/npm/\n"
        f"//localhost:{index.port}/npm/:_authToken=${{ACME_TOKEN}}\n"
    )
    monkeypatch.setenv("ACME_TOKEN", TOKEN)
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "npmrc"))
    monkeypatch.setenv(
        "PIP_EXTRA_INDEX_URL", f"https://operator:{PASSWORD}@localhost:{index.port}/simple"
    )
    monkeypatch.setenv("PIP_CERT", str(index.trust))
    monkeypatch.setenv("PIP_CLIENT_SECRET", PASSWORD)
    return index


async def test_pip_reads_a_private_index_without_seeing_the_password(
    app: Local, operator: Index
) -> None:
    check = ("/env/bin/python", "-c", "import private_tool; print(private_tool.ANSWER)")
    base = app.base(
        setup=((*PIP, "--no-deps", "private-tool==1.0"), python(LOOK)),
        checks={"tests": check, "py": ("python", "-V")},
    )
    prepared = await app.preparer.prepare(base)
    assert prepared.runs["tests"].output == "42\n"
    read = [path for _, path, credentials in operator.requests if credentials.startswith("Basic ")]
    assert read[-2:] == ["/simple/private-tool/", "/files/private_tool-1.0-py3-none-any.whl"]


async def test_npm_reads_a_private_registry_without_seeing_the_token(
    app: Local, operator: Index
) -> None:
    if not choose({"node": ""}).folders and choose({"node": ""}).missing:
        pytest.skip("no Node here")
    base = app.base(
        setup=(("npm", "install", "--no-audit", "--no-fund"), python(LOOK)),
        needs={"node": ""},
        checks={"tests": ("node", "-p", "require('@acme/tool')")},
    )
    prepared = await app.preparer.prepare(base)
    assert prepared.runs["tests"].output == "42\n"
    assert [credentials for _, path, credentials in operator.requests if path.endswith(".tgz")] == [
        f"Bearer {TOKEN}"
    ]


async def test_the_operators_credentials_cannot_be_used_to_write(
    app: Local, operator: Index
) -> None:
    publish = (
        "import os, urllib.request as u, ssl\n"
        f"for method in ('PUT', 'POST', 'DELETE'):\n"
        f"    request = u.Request('https://localhost:{operator.port}/npm/@acme%2ftool', "
        "data=b'x', method=method)\n"
        "    try:\n        u.urlopen(request, timeout=20); print('taken')\n"
        "    except u.HTTPError as error: print(error.code)\n"
        f"try:\n    u.urlopen('https://localhost:{operator.port}/npm/../simple/private-tool/', "
        "timeout=20); print('read')\n"
        "except u.HTTPError as error: print(error.code)\n"
    )
    base = app.base(setup=(python(f"{publish}raise SystemExit(3)"),))
    with pytest.raises(RepositoryError, match=r"405\n405\n405\n40[14]") as failed:
        await app.preparer.prepare(base)
    assert "\ntaken" not in str(failed.value)
    assert {method for method, *_ in operator.requests} == {"GET"}


async def test_the_local_machine_is_unreachable_with_and_without_the_proxy(app: Local) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        reach = (
            "import os, socket, urllib.request as u\n"
            f"try: socket.create_connection(('127.0.0.1', {port}), 3); print('reached')\n"
            "except OSError as error: print('directly', type(error).__name__)\n"
            "os.environ['no_proxy'] = ''; os.environ['NO_PROXY'] = ''\n"
            f"for host in ('127.0.0.1', 'localhost', '[::ffff:127.0.0.1]', '169.254.169.254'):\n"
            f"    try: u.urlopen(f'http://{{host}}:{port}/', timeout=10); print('reached')\n"
            "    except OSError as error: print(error)\n"
            "raise SystemExit(3)"
        )
        base = app.base(setup=(python(reach),))
        for network in ("allowlist", "on"):
            workspace = app.settings.workspace.model_copy(update={"setup_network": network})
            app.workspaces._settings = settings = app.settings.model_copy(
                update={"workspace": workspace}
            )
            with pytest.raises(RepositoryError) as failed:
                await Preparer(settings, lambda _: app.clone, app.workspaces).prepare(base)
            assert "\nreached" not in str(failed.value)
            assert str(failed.value).count("HTTP Error 403") == 4, str(failed.value).rpartition(
                "exit code"
            )
            assert f"127.0.0.1:{port}" in str(failed.value)
            assert "workspace.setup_hosts" in str(failed.value)


async def test_hosts_allowed_by_the_operator_are_reachable(app: Local) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        update = {"setup_hosts": (f"localhost:{port}",)}
        settings = app.settings.model_copy(
            update={"workspace": app.settings.workspace.model_copy(update=update)}
        )
        app.workspaces._settings = settings
        ask = (
            "import os, socket; proxy = os.environ['HTTPS_PROXY'].rpartition(':')[2]\n"
            "way = socket.create_connection(('127.0.0.1', int(proxy)), 10)\n"
            f"way.sendall(b'CONNECT localhost:{port} HTTP/1.1\\r\\n\\r\\n')\n"
            "assert b' 200 ' in way.recv(100)"
        )
        base = app.base(setup=(python(ask),))
        assert (await Preparer(settings, lambda _: app.clone, app.workspaces).prepare(base)).files
