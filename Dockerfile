# The image of the services, the hosts, and the link in each workspace's pod. Build it from the
# repository's root. BASE is an image with Python 3.11 or newer, preferably by digest. LOCK=run adds
# Ray and the small local model, for hosts on Ray.
ARG BASE=docker.io/library/python:3.13-slim-trixie
FROM ${BASE} AS build
ARG LOCK=services
WORKDIR /opt/src
COPY requirements/${LOCK}.txt requirements/${LOCK}.txt
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r requirements/${LOCK}.txt
COPY . .
RUN /opt/venv/bin/pip install --no-cache-dir --no-build-isolation --no-deps . \
    && /opt/venv/bin/pip uninstall --quiet --yes grpcio-tools hatchling mypy-protobuf pip setuptools \
    && python3 -m compileall -q -x /kubernetes/ /opt/venv/lib

FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin
USER 1000:1000
WORKDIR /
ENTRYPOINT ["moothall"]
