"""What a worker checks before it starts: its pool, its queues, its configuration.

Owns the checks of the command line. Connecting the servers is `worker.sessions.connecting`.
"""

import logging
import sys
import uuid
from typing import Any, NoReturn

from celery.concurrency import get_implementation
from kombu import Queue

from tarsy_tasks.broker import keys, kombu_transport
from tarsy_tasks.broker.binding import decide_binding
from tarsy_tasks.celery_app import broker_urls
from tarsy_tasks.config import check_secrets, describe_unused
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import load_settings
from tarsy_tasks.telemetry.probes import remove_leftovers
from tarsy_tasks.worker.masking_process import masking_process
from tarsy_tasks.worker.process import canvas_rules
from tarsy_tasks.worker.process.cancellation import CancellationStep
from tarsy_tasks.worker.process.fetch_step import FetchStep
from tarsy_tasks.worker.process.generation import load_generation, watch_files
from tarsy_tasks.worker.process.health_step import HealthStep
from tarsy_tasks.worker.process.pool import TaskPool
from tarsy_tasks.worker.process.reload import ReloadStep
from tarsy_tasks.worker.process.request_sets import make_safe_to_share
from tarsy_tasks.worker.process.task_events import DISPATCHER

__all__ = ["configure", "select_queues"]

logger = logging.getLogger(__name__)


def configure(worker: Any) -> None:
    """Give the worker a unique name and the queues of all configured servers; `-Q` selects from them afterwards. The
    readiness file of an earlier worker with the same host name is removed.
    """
    remove_leftovers(worker.hostname)
    worker.app.worker_instance = f"{worker.hostname}#{uuid.uuid4().hex[:8]}"
    try:
        worker.app.watch = watch_files()
        generation = worker.app.generation = load_generation()
    except ConfigError as error:
        _refuse(str(error))
    worker.app.mcp_config, worker.app.policy = generation.config, generation.policy
    worker.app.interceptors = generation.interceptors
    servers = generation.config.enabled_servers
    make_safe_to_share()
    worker.app.events.dispatcher_cls = DISPATCHER
    worker.app.steps["worker"].add(HealthStep)
    worker.app.steps["consumer"].add(CancellationStep)
    worker.app.steps["consumer"].add(FetchStep)
    worker.app.steps["consumer"].add(ReloadStep)
    names = [name for server in servers for name in (keys.queue(server), keys.check_queue(server))]
    worker.app.conf.task_queues = [Queue(name, routing_key=name) for name in names]


def select_queues(worker: Any) -> None:
    """Check the pool and the queues that were asked for, and add the check queue of each server that is served. Warns
    of secrets that the configuration exposes.
    """
    pool = get_implementation(worker.pool_cls)
    if not issubclass(pool, TaskPool):
        _refuse(
            f"the pool {pool.__module__}:{pool.__name__} cannot run MCP calls: only "
            "tarsy_tasks.worker.process.pool:TaskPool manages the MCP sessions and passes time limits and revocation "
            "on to the MCP server. Omit -P; scale with -c and with more workers."
        )
    _bind_agents(worker.app)
    queues = worker.app.amqp.queues
    configured = worker.app.mcp_config.enabled_servers
    for name in list(queues.consume_from):
        server = keys.server_of_queue(str(name))
        if server is None:
            continue
        if keys.agent_of_queue(str(name)):
            _refuse(f"-Q {name}: agents' queues are served with that of their server, {keys.queue(server)}")
        if server not in configured:
            known = ", ".join(keys.queue(server) for server in configured) or "none: no server is enabled"
            _refuse(f"-Q {name}: there is no enabled MCP server of that name. Queues: {known}")
        queues.select_add(keys.check_queue(server))
    for exposure in check_secrets():
        logger.warning("%s", exposure)
    if masking_process.obstacle:
        logger.warning("large texts are masked in threads, which delays other calls: %s", masking_process.obstacle)
    if (policy := worker.app.policy) is not None:
        logger.info("policy %s of %s", policy.version, policy.source)
    for line in describe_unused():
        logger.info("%s", line)


def _bind_agents(app: Any) -> None:
    binding = decide_binding(load_settings().canvas, broker_urls(app))
    if not binding.is_bound:
        return
    if app.conf.broker_transport != kombu_transport.ALIAS:
        _refuse(
            f"agents are bound, because {binding.reason}, but with broker_transport = {app.conf.broker_transport!r} "
            "a worker cannot know where a message came from. Omit broker_transport, or set TARSY_CANVAS=any."
        )
    canvas_rules.forget_own_tasks_of_celery(app)


def _refuse(reason: str) -> NoReturn:
    print(f"tarsy_tasks: {reason}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
    raise SystemExit(2)
