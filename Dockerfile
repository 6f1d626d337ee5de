# The toolchain itself: TVM with its LLVM, the `toolchain` command, and a C++ compiler for x86-64.
ARG BASE_IMAGE=debian:bookworm-20251229-slim@sha256:d5d3f9c23164ea16f31852f95bd5959aad1c5e854332fe00f7b3a20fcc9f635c

FROM ${BASE_IMAGE}
ARG DEBIAN_SNAPSHOT=20251229T000000Z
ARG DEBIAN_MIRROR=
ARG EXTRA_CA=docker/certs
ARG PIP_INDEX_URL=
ARG SOURCE_DATE_EPOCH=1766966400
COPY docker/install/ /build/install/
COPY ${EXTRA_CA}/ /build/certs/
COPY requirements.lock /build/
# What changes seldom stands apart from the toolchain's own sources, so that a cache keeps it.
RUN /build/install/apt.sh ca-certificates g++ make python3 python3-venv \
 && /build/install/pip.sh /opt/edge-toolchain /build/requirements.lock \
 && /build/install/compile.sh /usr/lib/python3.11 /opt/edge-toolchain/lib \
 && /build/install/clean.sh

COPY Dockerfile LICENSE README.md hatch_build.py pyproject.toml requirements.lock /build/toolchain/
COPY boards/ /build/toolchain/boards/
COPY docker/base.sh docker/builders.yaml docker/compose.yaml /build/toolchain/docker/
COPY docker/board/ /build/toolchain/docker/board/
COPY docker/install/ /build/toolchain/docker/install/
COPY docker/mali/ /build/toolchain/docker/mali/
COPY docker/pynq/ /build/toolchain/docker/pynq/
COPY docs/ /build/toolchain/docs/
COPY toolchain/ /build/toolchain/toolchain/
RUN /opt/edge-toolchain/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
      --no-deps --no-build-isolation --no-index /build/toolchain \
 && /build/install/compile.sh /opt/edge-toolchain/lib/python3.11/site-packages/toolchain \
 && /build/install/sbom.sh host /opt/edge-toolchain/lib/python3.11/site-packages \
 && /build/install/clean.sh \
 && rm -rf /build

ENV PATH=/opt/edge-toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp \
    LANG=C.UTF-8 \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["toolchain"]
LABEL org.opencontainers.image.title="edge-toolchain/host" \
      org.opencontainers.image.description="The toolchain with TVM, LLVM and a C++ compiler for x86-64" \
      edge-toolchain.triple="x86_64-linux-gnu" \
      edge-toolchain.compiler="x86_64-linux-gnu-g++"
