FROM python:3.13-slim

RUN useradd --create-home --uid 10001 tarsy
WORKDIR /srv/tarsy
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY tarsy_tasks tarsy_tasks
RUN pip install --no-cache-dir -c constraints.txt .
COPY celeryconfig.py ./
USER tarsy
# For a worker; docker-compose.yml has those of beat and Flower.
HEALTHCHECK --interval=30s --timeout=15s --start-period=80s CMD tarsy-tasks ready && tarsy-tasks alive
ENTRYPOINT ["celery", "-A", "tarsy_tasks"]
CMD ["worker", "-l", "INFO"]
