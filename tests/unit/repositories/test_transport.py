from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moothall.config import WorkspaceSettings
from moothall.domain.repository import Base, Prepared
from moothall.domain.task import RepositoryRef
from moothall.errors import InvalidRequest, MoothallError, Refused, RepositoryError
from moothall.network.destinations import Destinations
from moothall.repositories.gitcmd import GIT_SECONDS, GitRunner
from moothall.repositories.registry import anonymous_transport, repository_id
from moothall.repositories.service import RepositoryService

SCHEMES = ("https", "http", "ssh")


class Nobody:
    async def prepare(
        self, base: Base, on_progress: Callable[[str], None] | None = None
    ) -> Prepared:
        raise NotImplementedError


def repositories(
    tmp_path: Path, *allowed: str, git_seconds: float = GIT_SECONDS, **settings: object
) -> RepositoryService:
    workspace = WorkspaceSettings.model_validate({"allowed_schemes": SCHEMES, **settings})
    return RepositoryService(
        tmp_path / "data",
        workspace,
        Nobody().prepare,
        pin=Destinations.read(allowed, only=False).pin,
        git_seconds=git_seconds,
    )


@asynccontextmanager
async def listening(
    answer: bytes = b"", *, silent: bool = False
) -> AsyncIterator[tuple[int, list[str]]]:
    """Run a server on this machine; yield its port, and the received requests."""
    calls: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(str(writer.get_extra_info("peername")))
        if silent:
            await reader.read()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], calls
    finally:
        server.close()


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def refusal(trusted: RepositoryService, url: str) -> MoothallError:
    with pytest.raises(MoothallError) as raised:
        await trusted.resolve(RepositoryRef(url=url), tenant="acme")
    return raised.value


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/x.git",
        "https://127.0.0.1:{port}/x.git",
        "http://localhost:{port}/x.git",
        "http://[::ffff:127.0.0.1]:{port}/x.git",
        "http://0x7f000001:{port}/x.git",
        "http://0:{port}/x.git",
        "ssh://git@127.0.0.1:{port}/x.git",
        "git@127.0.0.1:x.git",
        "http://169.254.169.254/latest",
        "http://10.0.0.1/x.git",
        "http://192.168.0.1/x.git",
        "http://[fe80::1]/x.git",
    ],
)
async def test_a_tenants_url_cannot_reach_internal_addresses(tmp_path: Path, url: str) -> None:
    async with listening() as (port, calls):
        assert isinstance(await refusal(repositories(tmp_path), url.format(port=port)), Refused)
        assert calls == []


@pytest.mark.e2e
async def test_open_closed_and_silent_ports_get_the_same_message(tmp_path: Path) -> None:
    async with (
        listening(b"SSH-2.0-OpenSSH\r\n") as (banner, _),
        listening(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as (missing, _),
        listening(silent=True) as (silent, _),
    ):
        ports = {
            "inside": banner,
            "banner": banner,
            "missing": missing,
            "silent": silent,
            "closed": closed_port(),
        }
        allowed = repositories(tmp_path, "127.0.0.1", git_seconds=2)
        messages = set()
        for port in (banner, missing, silent, ports["closed"]):
            error = await refusal(allowed, f"http://127.0.0.1:{port}/x.git")
            assert isinstance(error, RepositoryError)
            messages.add(error.message.replace(str(port), "PORT"))
        assert len(messages) == 1, messages
        refused = {
            (
                await refusal(repositories(tmp_path), f"http://127.0.0.1:{port}/x.git")
            ).message.replace(str(port), "PORT")
            for port in ports.values()
        }
        assert len(refused) == 1, refused


async def test_an_internal_name_is_reported_as_unknown(
    tmp_path: Path,
) -> None:
    messages = [
        (await refusal(repositories(tmp_path), f"https://{host}/x.git")).message.replace(
            host, "HOST"
        )
        for host in ("localhost", "nobody-knows-this.invalid")
    ]
    assert messages[0] == messages[1]


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with listening() as (inner_port, calls):
        answer = (
            f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{inner_port}/x.git/info/refs\r\n"
            "Content-Length: 0\r\n\r\n"
        )
        async with listening(answer.encode()) as (port, requests):
            error = await refusal(
                repositories(tmp_path, f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/x.git"
            )
            assert isinstance(error, RepositoryError)
            assert (len(requests), calls) == (1, [])


async def test_git_for_a_tenant_ignores_the_operators_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[http]\n\textraHeader = Authorization: operator\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    git = GitRunner(tmp_path / "data")

    async def pin(url: str) -> str:
        return f"{url}:443:203.0.113.7"

    env = await anonymous_transport(git, tmp_path, "https://host.example/x.git", pin)
    config = (await git.run("config", "--list", cwd=tmp_path, env=env)).decode().lower()
    assert "operator" not in config
    assert "http.proxy=\n" in config
    assert "http.curloptresolve=https://host.example/x.git:443:203.0.113.7" in config
    environment = (await git.run("-c", "alias.env=!env", "env", cwd=tmp_path, env=env)).decode()
    assert "SSH_AUTH_SOCK=\n" in environment
    assert "HOME=/dev/null\n" in environment
    assert str(tmp_path / "agent") not in environment


async def test_a_url_with_an_ambiguous_host_is_refused(
    tmp_path: Path,
) -> None:
    assert isinstance(
        await refusal(repositories(tmp_path), "http://127.0.0.1#@example.org/x.git"), InvalidRequest
    )


async def test_a_url_registered_for_one_tenant_is_used_for_no_other(
    tmp_path: Path,
) -> None:
    async with listening() as (port, calls):
        url = f"http://127.0.0.1:{port}/x.git"
        trusted = repositories(tmp_path)
        await trusted.register(url, tenant="acme")
        assert "cannot reach" in (await refusal(trusted, url)).message
        assert len(calls) == 1
        with pytest.raises(Refused):
            await trusted.resolve(RepositoryRef(url=url), tenant="other")
        with pytest.raises(MoothallError):
            await trusted.resolve(RepositoryRef(id=repository_id(url, "acme")), tenant="other")
        assert len(calls) == 1
