# The services, hosts, and the link of each workspace's pod. Build it from the repository's root; BASE is Python 3.11 or newer, best by its digest.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git libgomp1 && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/src
COPY requirements/run.txt requirements/run.txt
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt \
    && python3 -m compileall -q /opt/venv/lib
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir --no-build-isolation --no-deps . \
    && python3 -m compileall -q /opt/venv/lib/python3*/site-packages/moothall && rm -rf /opt/src/*
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
USER 1000:1000
WORKDIR /
ENTRYPOINT ["moothall"]
