# The image of every component of the pipeline, and of `docker run`: dkan, its locked dependencies, and kfp's executor.
#
#   docker build -t dkan:0.3.0.dev0 .
#   docker run --rm --gpus all -v "$PWD:/data" dkan:0.3.0.dev0 dkan train /data/prepared --out /data/run
#
# No ENTRYPOINT: Kubeflow gives the whole command, and one here would turn a failing step into a success.
# docs/guides/docker.md has the build arguments.

ARG BASE=python:3.12.12-slim-bookworm@sha256:593bd06efe90efa80dc4eee3948be7c0fde4134606dd40d8dd8dbcade98e669c

FROM ${BASE} AS dependencies
ENV UV_PYTHON_DOWNLOADS=never \
    UV_COMPILE_BYTECODE=1 \
    UV_NO_CACHE=1
WORKDIR /src
# Of pip and of uv, where PyPI is mirrored; without them, the base decides.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
COPY requirements-build.txt ./
RUN sed -n '/^uv==/,/[^\\]$/p' requirements-build.txt >/tmp/uv.txt \
    && pip install --no-cache-dir --require-hashes --requirement /tmp/uv.txt
COPY pyproject.toml uv.lock requirements-torch-cpu.txt ./
ARG VARIANT=gpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
# Installed by name and hash, not by uv sync, which downloads from the addresses in the lock, whatever index is given.
# The lock holds the CUDA build of torch, which does not load without the CUDA libraries. The cpu variant leaves out
# both, and takes a CPU build from its own index, which serves nothing else here.
RUN set -eu -- --frozen --no-dev --no-emit-project --quiet --output-file /tmp/locked.txt \
        --extra s3 --extra gcs --extra tensorboard --extra nodes --extra registry --extra mlflow --extra serve; \
    uv export "$@"; \
    case "${VARIANT}" in \
    gpu) ;; \
    cpu) cuda=$(sed -nE 's/^((cuda|nvidia|torch|triton)[a-z0-9-]*)(\[|=).*/\1/p' /tmp/locked.txt); \
        for name in ${cuda}; do set -- "$@" --no-emit-package "${name}"; done; \
        uv export "$@" ;; \
    *) echo "VARIANT must be gpu or cpu, got ${VARIANT}" >&2; exit 1 ;; \
    esac; \
    uv venv --quiet /opt/dkan; \
    uv pip install --python /opt/dkan/bin/python --no-deps --require-hashes --requirement /tmp/locked.txt; \
    if [ "${VARIANT}" = cpu ]; then \
        uv pip install --python /opt/dkan/bin/python --no-deps --default-index "${TORCH_CPU_INDEX}" \
            --require-hashes --requirement requirements-torch-cpu.txt; \
    fi

FROM dependencies AS build
ARG UV_DEFAULT_INDEX
# The compiler of the native extension stays in this stage.
# hadolint ignore=DL3008
RUN if ! command -v g++; then \
        apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; \
    fi
COPY README.md LICENSE hatch_build.py ./
COPY dkan_core ./dkan_core
# kfp alone, as it is locked: its executor needs nothing else of what it depends on.
RUN uv build --wheel --build-constraints requirements-build.txt --require-hashes --out-dir /dist \
    && uv pip install --python /opt/dkan/bin/python --prefix /own --no-deps /dist/*.whl \
    && uv export --frozen --no-dev --extra kfp --no-emit-project --quiet --output-file /tmp/locked.txt \
    && sed -n '/^kfp==/,/[^\\]$/p' /tmp/locked.txt >/tmp/kfp.txt \
    && uv pip install --python /opt/dkan/bin/python --prefix /own --no-deps --require-hashes --requirement /tmp/kfp.txt

FROM ${BASE}
ARG VARIANT=gpu
# Triton compiles what launches its kernels when they are first used.
# hadolint ignore=DL3008
RUN if [ "${VARIANT}" = gpu ] && ! command -v gcc; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
# Two layers: a change of the code builds, pushes and pulls only the small one.
COPY --from=dependencies /opt/dkan /opt/dkan
COPY --from=build /own /opt/dkan
# A cluster may run the image under any uid, one without a passwd entry: the name and the home come from here. /tmp is
# the one folder still writable where the root is read-only; libraries keep their caches in the home.
ENV PATH=/opt/dkan/bin:$PATH \
    HOME=/tmp \
    USER=dkan \
    PYTHONUNBUFFERED=1
WORKDIR /tmp
USER 10001:0
CMD ["dkan", "--help"]
# Last: another revision then copies nothing again.
ARG VERSION=0.3.0.dev0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dkan" \
      org.opencontainers.image.description="Train FastKAN on huge tabular data, as a Kubeflow Pipelines bundle" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      dkan.variant="${VARIANT}"
