# One image for everything: the web server is its default, `--target worker` makes the worker of it.
#   docker build -t dtq .                      docker build -t dtq-worker --target worker .
# Handlers of your own: FROM dtq-worker, COPY mine.py /app/, ENV DTQ_TASKS=mine (docs/deployment.md).
ARG PYTHON_IMAGE=python:3.12.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv --without-pip /opt/venv
COPY requirements.txt /tmp/
RUN python -m pip --python /opt/venv/bin/python install --only-binary :all: -r /tmp/requirements.txt

FROM ${PYTHON_IMAGE} AS base
RUN groupadd --system --gid 10001 dtq \
    && useradd --system --uid 10001 --gid dtq --no-create-home --home-dir /var/lib/dtq --shell /usr/sbin/nologin dtq \
    && install -d -o dtq -g dtq -m 0700 /var/lib/dtq
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY . .
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    DTQ_IMAGE=true DTQ_API_HOST=0.0.0.0 DTQ_DIRECTORY=/var/lib/dtq
RUN python -m compileall -q -j 0 /opt/venv /app
USER 10001:10001
STOPSIGNAL SIGTERM

FROM base AS worker
EXPOSE 8001
HEALTHCHECK --interval=15s --timeout=10s --start-period=20s --retries=3 CMD ["python", "worker.py", "--check"]
CMD ["python", "worker.py"]

FROM base AS web
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=10s --start-period=20s --retries=3 CMD ["python", "-m", "dtq.web.probe"]
CMD ["gunicorn", "--config", "python:dtq.web.gunicorn_conf", "app:app"]
