# gpuflow on the CPU: installs it, and runs the demo and the tests as the README does.
#
#   docker build -f docker/cpu.Dockerfile -t gpuflow .
#   docker run --rm gpuflow                       # the demo
#   docker run --rm gpuflow pytest -n auto        # the tests
FROM python:3.12-slim

RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home user && mkdir /gpuflow && chown user /gpuflow
WORKDIR /gpuflow
USER user
COPY --chown=user . .
ENV VIRTUAL_ENV=/home/user/venv PATH=/home/user/venv/bin:$PATH
RUN python3 -m venv "$VIRTUAL_ENV" \
    && pip install --no-cache-dir ".[demo]" \
    && pip install --no-cache-dir ".[test]"
CMD ["gpuflow", "demo"]
