# The harness on CPUs: docker build -f docs/examples/containers/cpu.Dockerfile -t grpo-harness:cpu .
# Not built here: where this was written no image could be fetched.
FROM python:3.11-slim-bookworm

# make for the targets; git so that results record their commit; a compiler for torch.compile
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make git g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /harness
COPY pyproject.toml README.md LICENSE CHANGELOG.md Makefile ./
COPY harness harness
COPY scenarios scenarios
COPY profiles profiles
# torch's default build for Linux brings CUDA; its CPU build comes from an index of its own
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install --no-cache-dir --constraint harness/constraints.txt '.[nixl]'

# results belong on a volume: docker run --rm --shm-size=2g -v "$PWD/results:/work/results" grpo-harness:cpu run quickstart
RUN useradd --create-home user && mkdir /work && chown user /work
USER user
WORKDIR /work
ENTRYPOINT ["grpo-harness"]
CMD ["list"]
