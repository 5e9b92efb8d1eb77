# gpuflow with CUDA 13: needs a driver of version 580 or newer and NVIDIA's container toolkit.
#
#   docker build -f docker/cuda.Dockerfile -t gpuflow-cuda .
#   docker run --rm --gpus all gpuflow-cuda gpuflow doctor
#   docker run --rm --gpus all gpuflow-cuda                      # the demo
#   docker run --rm --gpus all gpuflow-cuda pytest -n auto       # the tests
#
# CUDA's libraries come as Python wheels, so that the base image needs none. Not run on a GPU yet.
FROM python:3.12-slim

RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home user && mkdir /gpuflow && chown user /gpuflow
WORKDIR /gpuflow
USER user
COPY --chown=user . .
ENV VIRTUAL_ENV=/home/user/venv PATH=/home/user/venv/bin:$PATH
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN python3 -m venv "$VIRTUAL_ENV" \
    && pip install --no-cache-dir ".[demo,cuda13]" \
    && pip install --no-cache-dir ".[test,cuda13]"
CMD ["gpuflow", "demo"]
