FROM python:3.13-slim

# For MCP servers that are started by `npx`.
RUN apt-get update && apt-get install -y --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 tarsy
WORKDIR /srv/tarsy
COPY deploy/requirements.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY tarsy_tasks tarsy_tasks
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
COPY celeryconfig.py ./
USER tarsy
# For a worker; docker-compose.yml has those of beat and Flower.
HEALTHCHECK --interval=30s --timeout=15s --start-period=80s CMD tarsy-tasks ready && tarsy-tasks alive
ENTRYPOINT ["celery", "-A", "tarsy_tasks"]
CMD ["worker", "-l", "INFO"]
