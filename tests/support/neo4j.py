"""A real Neo4j 5 for tests, on loopback: the server that the environment names, or one of our own
from Maven and Java, or a container.

The server's jars come from Maven Central and are fetched once into the user's cache.
`scripts/neo4j` starts the same server for people.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from neo4j import GraphDatabase
from neo4j.exceptions import DriverError, Neo4jError

from moothall.config import environment
from support.cache import cached

VERSION = "5.26.12"
IMAGE = f"neo4j:{VERSION}-community"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>moothall.testing</groupId><artifactId>neo4j</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.neo4j</groupId><artifactId>neo4j</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.neo4j.app</groupId><artifactId>neo4j-server</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""
_CONFIGURATION = """server.default_listen_address=127.0.0.1
server.bolt.listen_address=127.0.0.1:{port}
server.bolt.advertised_address=127.0.0.1:{port}
server.http.enabled=false
server.https.enabled=false
dbms.security.auth_enabled=true
dbms.usage_report.enabled=false
server.memory.pagecache.size=64m
db.tx_log.preallocate=false
"""
OPENS = (
    "java.base/java.nio",
    "java.base/java.io",
    "java.base/sun.nio.ch",
    "java.base/java.util.concurrent",
)
_FETCH_SECONDS, _START_SECONDS, _STOP_SECONDS = 900.0, 300.0, 20.0


class Missing(Exception):
    """Neo4j is unavailable here; the message names what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address and credentials."""

    url: str
    user: str
    password: str

    @property
    def url_with_user(self) -> str:
        """The address as in `graph.url`."""
        scheme, _, host = self.url.partition("://")
        return f"{scheme}://{quote(self.user, safe='')}@{host}"


def jars() -> Path:
    """Return the folder of the server's jars. The first call fetches them (about 115 MB, two
    minutes). Raises `Missing`.
    """
    return cached(f"neo4j-{VERSION}", _fetch)


def _fetch(draft: Path) -> Path:
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        raise Missing(
            f"no Neo4j: {' and '.join(absent)} missing; `apt-get install openjdk-17-jre-headless "
            "maven` brings them, or name a server of your own in "
            "MOOTHALL_TEST_NEO4J_URL=bolt://user:password@host:port"
        )
    (draft / "pom.xml").write_text(_POM, encoding="utf-8")
    command = [
        "mvn",
        "-q",
        "-B",
        "-C",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={draft}/jars",
    ]
    command.append("-Dmdep.prependGroupId=true")  # two of the jars have the same name
    completed = subprocess.run(
        command, cwd=draft, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
    )
    if completed.returncode:
        raise Missing(
            f"no Neo4j: Maven could not fetch it: {(completed.stdout + completed.stderr)[-600:]}"
        )
    return draft / "jars"


@contextmanager
def some_server(home: Path) -> Iterator[Address]:
    """Yield the server that the environment names, or our own, or a container. Raises `Missing`."""
    named = environment().get("MOOTHALL_TEST_NEO4J_URL", "")
    if named:
        yield _parse_address(named)
    elif (shutil.which("java") and shutil.which("mvn")) or not docker_runs():
        with server(home) as address:
            yield address
    else:
        with container() as address:
            yield address


@contextmanager
def server(home: Path) -> Iterator[Address]:
    """Run a server with its files in `home` until the context ends. Raises `Missing`."""
    classes = jars()
    port, password = _free_port(), secrets.token_urlsafe(12)
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "neo4j.conf").write_text(_CONFIGURATION.format(port=port), encoding="utf-8")
    opens = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENS]
    command = [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *opens,
        "-Dio.netty.tryReflectionSetAccessible=true",
    ]
    command += ["-cp", f"{classes}/*", "org.neo4j.server.CommunityEntryPoint"]
    command += [f"--home-dir={home}", f"--config-dir={home / 'conf'}"]
    with (home / "out.log").open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        address = Address(f"bolt://127.0.0.1:{port}", "neo4j", password)
        _let_in(address, process, home / "out.log")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def container() -> Iterator[Address]:
    """Run the official image on a free port of loopback. Raises `Missing`."""
    port, password = _free_port(), secrets.token_urlsafe(12)
    command = [
        "docker",
        "run",
        "--rm",
        "--detach",
        "--publish",
        f"127.0.0.1:{port}:7687",
        "--env",
        f"NEO4J_AUTH=neo4j/{password}",
    ]
    started = subprocess.run([*command, IMAGE], capture_output=True, text=True, check=False)
    if started.returncode:
        raise Missing(f"no Neo4j: docker could not run {IMAGE}: {started.stderr.strip()[-300:]}")
    name = started.stdout.strip()
    try:
        address = Address(f"bolt://127.0.0.1:{port}", "neo4j", password)
        _wait(address, lambda: None)
        yield address
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)


def _parse_address(url: str) -> Address:
    parts = urlsplit(url)
    public_url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return Address(public_url, unquote(parts.username or "neo4j"), unquote(parts.password or ""))


def docker_runs() -> bool:
    """True if a docker daemon answers."""
    if shutil.which("docker") is None:
        return False
    return (
        subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode
        == 0
    )


def _let_in(address: Address, process: subprocess.Popen[bytes], log: Path) -> None:
    """Change the initial password, as a fresh server requires."""

    def alive() -> None:
        if process.poll() is not None:
            raise RuntimeError(
                f"Neo4j ended at its start: {log.read_text(errors='replace')[-2000:]}"
            )

    first = Address(address.url, "neo4j", "neo4j")
    _wait(
        first,
        alive,
        f"ALTER CURRENT USER SET PASSWORD FROM 'neo4j' TO '{address.password}'",
        "system",
    )
    _wait(address, alive)


def _wait(
    address: Address, alive: Callable[[], None], query: str = "RETURN 1", database: str = "neo4j"
) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        alive()
        try:
            with GraphDatabase.driver(
                address.url, auth=(address.user, address.password), max_transaction_retry_time=0
            ) as driver:
                driver.execute_query(query, database_=database)
                return
        except (Neo4jError, DriverError, OSError) as error:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"Neo4j did not answer within {_START_SECONDS:.0f} seconds"
                ) from error
            time.sleep(0.3)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Fetch, or run a server until interrupted."""
    parser = argparse.ArgumentParser(
        prog="scripts/neo4j", description="A real Neo4j on loopback, for tests and trials."
    )
    parser.add_argument(
        "--fetch", action="store_true", help="only fetch the jars (once, about 115 MB)"
    )
    arguments = parser.parse_args()
    # SIGTERM acts like Ctrl-C, and ends the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.fetch:
            print(jars())  # noqa: T201 - output of a script
            return
        with (
            tempfile.TemporaryDirectory(prefix="moothall-neo4j-") as home,
            server(Path(home) / "home") as address,
        ):
            print(  # noqa: T201
                f"MOOTHALL_GRAPH__URL={address.url} MOOTHALL_GRAPH__PASSWORD={address.password}",
                flush=True,
            )
            signal.pause()
    except KeyboardInterrupt:
        return
    except Missing as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
