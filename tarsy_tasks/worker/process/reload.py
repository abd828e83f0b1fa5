"""How a running worker takes a changed configuration: when its files change, on SIGHUP, and on an operator's command.

Owns the thread that looks at the files and loads them, what becomes of a configuration with a problem, and the order in
which the parts of the worker get a new one. What a server's change means is in `server_changes`.
"""

import logging
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import bootsteps
from kombu import Queue

from tarsy_tasks.broker import keys
from tarsy_tasks.config import load_config
from tarsy_tasks.config.record import ConfigurationRecord, find_record
from tarsy_tasks.config.watch import FileWatch
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.calls.interceptors import build_interceptors, has_approvals, has_cache
from tarsy_tasks.worker.maskers import build_common_masker, build_record_masker
from tarsy_tasks.worker.process.generation import Generation, load_generation
from tarsy_tasks.worker.process.policy_terms import build_limit_report, weights_of
from tarsy_tasks.worker.process.pool import TaskPool
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["ConfigurationReload", "ReloadStep"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_APPLY_S = 30.0
_STOP_S = 5.0
_SHOWN_CHARS = 1000


class ReloadStep(bootsteps.StartStopStep):
    """Takes changed configurations while Celery's consumer is connected; what changed meanwhile, afterwards."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._reload: ConfigurationReload | None = None

    def start(self, parent: Any) -> None:
        if self._reload is None:
            app = parent.app
            self._reload = ConfigurationReload(parent.pool, app.generation, app.watch, parent.controller.takes)
        reload = parent.configuration_reload = self._reload
        if callable(signal.getsignal(signal.SIGHUP)) and threading.current_thread() is threading.main_thread():
            # Celery's own handler starts the worker again. In a terminal it has none: there the signal ends the worker.
            signal.signal(signal.SIGHUP, reload.ask)
        reload.start(parent)

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        if self._reload is not None:
            self._reload.stop()

    shutdown = stop


class ConfigurationReload:
    """How one worker process takes a changed configuration.

    Args:
        generation: What it has started with.
        watch: Of its files, from before they were read.
        takes: Whether it takes messages of a queue, by `-Q` and `-X`.
    """

    def __init__(self, pool: TaskPool, generation: Generation, watch: FileWatch, takes: Callable[[str], bool]) -> None:
        self._pool = pool
        self._app = pool.app
        self._generation = generation
        self._unfinished: Generation | None = None
        """One of which only some parts of the worker may have been told, because of an error."""
        self._takes = takes
        pool.context.connections.inform(self)
        self._consumer: Any = None
        self._is_asked = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._record = find_record(load_config)
        self._problem = ""
        """Of the record, as it was last said."""
        self._watch = watch

    def start(self, consumer: Any) -> None:
        """Begin to look, or go on after an outage of Redis."""
        self._consumer = consumer
        # Once it consumes at all: it declares its queues when its loop begins.
        consumer.hub.call_soon(self._consume)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="tarsy-configuration", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def ask(self, *_: Any) -> None:
        """Take the configuration, even if no file has changed. It is also the handler of the signal."""
        self._is_asked = True

    def add(self, connection: ServerConnection) -> None:  # noqa: ARG002
        """As `KeptPerServer.add`: take messages accordingly."""
        self._consumer.hub.call_soon(self._consume)

    def remove(self, server: str) -> None:  # noqa: ARG002
        """As `KeptPerServer.remove`."""
        self._consumer.hub.call_soon(self._consume)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                if self._record is not None:
                    self._follow(self._record)
                has_changed = self._watch.has_changed()
                # The copy of a record is never there in part, so it need not stay the same for a while.
                if self._is_asked or has_changed or (self._record is not None and not self._watch.is_current()):
                    self._is_asked = False
                    self._take()
            except Exception:
                logger.exception("a changed configuration could not be taken")

    def _follow(self, record: ConfigurationRecord) -> None:
        record.follow()
        if (problem := record.problem) != self._problem:
            self._problem = problem
            self._say(self._show(problem))

    def _take(self) -> None:
        self._watch.begin()
        try:
            generation = load_generation(self._generation, self._record and self._record.path)
        except ConfigError as error:
            self._refuse(error)
            return
        if not self._watch.is_current():
            return  # it was saved again meanwhile, and is looked at again when that is over
        before, unfinished, self._unfinished = self._generation, self._unfinished, generation
        what = self._pool.loop.submit(self._apply(before, generation, unfinished)).result(_APPLY_S)
        self._generation, self._unfinished = generation, None
        self._pool.context.taken = generation.taken(self._pool.context.settings, self._show(self._problem))
        logger.info("configuration %s taken: %s", generation.version, what or "nothing is different for this worker")
        self._report()

    def _refuse(self, error: ConfigError) -> None:
        logger.error("the changed configuration was not taken, and the one before it stays in use: %s", error)
        self._say(self._show(str(error)))

    def _show(self, problem: str) -> str | None:
        return self._pool.context.masker.mask(problem)[:_SHOWN_CHARS] or None

    def _say(self, text: str | None) -> None:
        """Have health records say why the worker has not taken what is saved; None: it has."""
        self._pool.context.taken = self._generation.taken(self._pool.context.settings, text)
        self._report()

    def _report(self) -> None:
        if (checks := self._pool.context.checks) is not None:
            checks.report_configuration()

    async def _apply(self, before: Generation, now: Generation, unfinished: Generation | None) -> str:
        """Have all parts of the worker go by it; on the session loop. Returns what changes, for the log."""
        context, app, config = self._pool.context, self._app, now.config
        app.mcp_config, app.policy, app.interceptors = config, now.policy, now.interceptors
        # What is masked first: a server that comes may say a secret at once, and one that goes as long as it is there.
        context.record_maskers.update({name: build_record_masker(server) for name, server in config.servers.items()})
        known = [each.config for each in (before, unfinished, now) if each is not None]
        everyone = [server for each in known for server in each.enabled_servers.values()]
        app.log_masking.masker = build_common_masker(everyone)
        self._pool.inheritance.replace_servers(config.servers.values())
        what = self._pool.server_changes.apply(
            {name: server for name, server in config.enabled_servers.items() if self._serves(name)}
        )
        is_cached, asks = has_cache(config), has_approvals(config)
        has_new_rules = (
            unfinished is not None
            or _version_of(before) != _version_of(now)
            or before.interceptors is not now.interceptors
        )
        if has_new_rules or (has_cache(before.config), has_approvals(before.config)) != (is_cached, asks):
            context.policy = now.policy
            build = partial(build_interceptors, context, now.interceptors, is_cached=is_cached, has_approvals=asks)
            self._pool.runner.replace_interceptors(build(), build(isolation=self._pool.isolated))
        self._pool.limit_reporter.replace(build_limit_report(now.policy, config.enabled_servers))
        await self._pool.fetcher.replace_terms(weights_of(now.policy), self._pool.build_fetch_limits())
        policy = f"policy {_version_of(now)}" if _version_of(before) != _version_of(now) else ""
        return "; ".join(filter(None, (what, policy)))

    def _serves(self, server: str) -> bool:
        """Whether this worker takes the calls or the checks of a server."""
        return self._takes(keys.queue(server)) or self._takes(keys.check_queue(server))

    def _consume(self) -> None:
        """Take messages from the queues of all servers, and from those of servers that are gone, whose calls are
        answered. In the thread of Celery's consumer."""
        consumer, queues = self._consumer, self._app.amqp.queues
        if consumer.task_consumer is None or self._stopping.is_set():
            return  # Redis is away, and `start` comes again; or the worker stops, and has stopped taking messages
        connections = self._pool.context.connections
        wanted = [keys.queue(server) for server in (*connections, *connections.removed)]
        wanted = [*filter(self._takes, wanted), *map(keys.check_queue, connections)]
        for name in wanted:
            if not consumer.task_consumer.consuming_from(name):
                if name not in queues:
                    queues.add(Queue(name, routing_key=name))
                consumer.add_task_queue(name)
        for name in map(keys.check_queue, connections.removed):
            if consumer.task_consumer.consuming_from(name):
                consumer.cancel_task_queue(name)


def _version_of(generation: Generation) -> str:
    return generation.policy.version if generation.policy is not None else "none"
