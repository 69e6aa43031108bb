"""An image of Neo4j for the throw-away cluster: a Java runtime from Debian's packages, and the
server's jars.
"""

from __future__ import annotations

from support import neo4j
from support.kube import archive
from support.kube.programs import Home, Missing, Say

IMAGE = f"registry.local/neo4j:{neo4j.VERSION}"
_PACKAGES, _SUITE = "ca-certificates,openjdk-17-jre-headless", "bookworm"
_USER = "7474:7474"
_ENTRY = """#!/bin/sh
# Settings and the first password as the official image takes them: NEO4J_a_b__c=value is a.b_c=value, NEO4J_AUTH is neo4j/PASSWORD.
set -eu
export NEO4J_HOME=/tmp/neo4j NEO4J_CONF=/tmp/neo4j/conf
mkdir -p "$NEO4J_CONF"
{
    echo server.default_listen_address=0.0.0.0
    echo server.directories.data=/data
    echo server.https.enabled=false
    echo server.memory.pagecache.size=64m
    echo db.tx_log.preallocate=false
    env | sed -n 's/^NEO4J_\\([a-z]\\)/\\1/p' | while IFS== read -r name value; do
        echo "$(echo "$name" | sed 's/__/%/g; s/_/./g; s/%/_/g')=$value"
    done
} >"$NEO4J_CONF/neo4j.conf"
if [ ! -e /data/dbms/auth.ini ] && [ ! -e /data/databases/system ]; then
    java -Xmx256m -cp '/jars/*' org.neo4j.cli.AdminTool dbms set-initial-password "${NEO4J_AUTH#neo4j/}"
fi
exec java "-Xmx${NEO4J_server_memory_heap_max__size:-512m}" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 OPENS \\
    -Dio.netty.tryReflectionSetAccessible=true -cp '/jars/*' org.neo4j.server.CommunityEntryPoint "--home-dir=$NEO4J_HOME" "--config-dir=$NEO4J_CONF"
"""  # noqa: E501 - a line of embedded text


def make(home: Home, say: Say) -> None:
    """Create the archive if it is missing. Raises `Missing`."""
    out = home.images / f"neo4j-{neo4j.VERSION}.tar"
    if out.exists():
        return
    say("building the image of Neo4j from its jars and Debian's packages")
    try:
        jars = neo4j.jars()
    except neo4j.Missing as missing:
        raise Missing(str(missing)) from missing
    opens = " ".join(f"--add-opens={name}=ALL-UNNAMED" for name in neo4j.OPENS)
    files = {f"/jars/{path.name}": path.read_bytes() for path in sorted(jars.glob("*.jar"))}
    files["/entry"] = _ENTRY.replace("OPENS", opens).encode()
    layers = [archive.debian(_PACKAGES, _SUITE), archive.layer(files)]
    archive.write(
        out,
        IMAGE,
        layers,
        {"Entrypoint": ["/entry"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "User": _USER},
    )
