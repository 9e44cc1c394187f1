# The whole package, for a pod's hosts or a machine with GPUs. From the repository's root:
#   docker build -t astra .                                         (TPU)
#   docker build --build-arg EXTRAS=cuda12,gcs -t astra .           (NVIDIA GPUs; cuda13 likewise)
#   docker run --rm astra astra --help
# The sandbox alone, without JAX: sandbox/deploy/Dockerfile.
FROM python:3.11-slim
ARG EXTRAS=tpu,gcs
# The sandbox needs the package where every user may read it.
WORKDIR /opt/astra
COPY pyproject.toml README.md LICENSE ./
COPY astra_jax ./astra_jax
COPY synthesis ./synthesis
COPY sandbox ./sandbox
COPY configs ./configs
RUN pip install --no-cache-dir ".[${EXTRAS}]"
CMD ["astra", "--help"]
