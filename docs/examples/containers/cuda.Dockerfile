# The harness on NVIDIA GPUs: docker build -f docs/examples/containers/cuda.Dockerfile -t grpo-harness:cuda .
# Not built here, and no GPU has run the harness yet: begin with `gpu-check` (docs/gpu_check.md).
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

# DeepSpeed and Triton compile at their first use
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make git g++ python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /harness
COPY pyproject.toml README.md LICENSE CHANGELOG.md Makefile ./
COPY harness harness
COPY scenarios scenarios
COPY profiles profiles
COPY tests tests
RUN python3.12 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --constraint harness/constraints.txt '.[nixl,nccl,vllm,dev]'
ENV PATH=/venv/bin:$PATH

# docker run --rm --gpus all --shm-size=16g grpo-harness:cuda gpu-check
# docker run --rm --gpus all --shm-size=16g -v "$PWD/results:/harness/results" grpo-harness:cuda run rdt_gpu
ENTRYPOINT ["grpo-harness"]
CMD ["list"]
