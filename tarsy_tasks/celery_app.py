"""The Celery application: safe defaults, and the settings of the user over them.

Owns the Celery settings. It imports neither half: the worker's modules are named in `include`. `entry_point` makes
`tarsy_tasks.app` and connects Celery's signals.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, cast

import kombu.compression as kombu_compression
from celery import Celery

from tarsy_tasks.broker import keys, kombu_transport
from tarsy_tasks.broker.principals import bound_agent_of
from tarsy_tasks.broker.redis_url import RedisUrl, ask_for_certificate
from tarsy_tasks.broker.signing import signing_settings
from tarsy_tasks.broker.task_names import CALLS, LIST_TOOLS, server_of
from tarsy_tasks.config import Config, find_config_path, load_config
from tarsy_tasks.config.following import FollowedConfig
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.interceptors import Interceptor
from tarsy_tasks.policy import Policy
from tarsy_tasks.settings import load_settings
from tarsy_tasks.tool_names import resolve_server

__all__ = ["TarsyApp", "agent_app", "bound_agent", "broker_urls", "build_app", "mcp_config_of"]


DEFAULTS: dict[str, Any] = {
    "include": ["tarsy_tasks.worker.calls.tasks"],
    "task_routes": ["tarsy_tasks.broker.task_names.route_task"],
    "task_default_queue": "tarsy",
    "broker_transport": kombu_transport.ALIAS,
    "beat_scheduler": "tarsy_tasks.scheduler:CheckScheduler",
    # JSON only: a message is data, never code.
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "result_accept_content": ["json"],
    "result_expires": 3600,
    # A call stays in the in-flight table until it is answered.
    "task_acks_late": True,
    # Calls run on the session loop, some with a thread that waits for them; -c is how many one process runs at once.
    "worker_pool": "tarsy_tasks.worker.process.pool:TaskPool",
    "worker_concurrency": 256,
    "worker_consumer": "tarsy_tasks.worker.process.consumer:Consumer",
    # Nothing is reserved beyond capacity, so that a call never waits behind one that runs while another worker is idle.
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    # Messages with an ETA are kept in Redis; only where it refuses that does a worker keep them.
    "worker_eta_task_limit": 10_000,
    # By default every pool thread opens its own connections.
    "result_backend_thread_safe": True,
    # redis-py raises when a pool is full; these are opened only when needed.
    "redis_max_connections": 4096,
    "broker_pool_limit": 64,
    # Each priority step multiplies the keys of every BRPOP. The priorities of calls are the package's own lists.
    "broker_transport_options": {
        "priority_steps": [0],
        # A worker renews its leases four times in this time; if it does not, its calls go back to their queues.
        "visibility_timeout": 20,
        "health_check_interval": 10,
        "socket_timeout": 5,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "socket_keepalive_options": kombu_transport.KEEPALIVE,
    },
    "redis_socket_timeout": 5,
    "redis_socket_connect_timeout": 5,
    "redis_socket_keepalive": True,
    "redis_socket_keepalive_options": kombu_transport.KEEPALIVE,
    # A worker without Redis waits, and logs it.
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_soft_shutdown_timeout": 10.0,
}

_AGENT_SOCKET_S = 2
_URLS = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")
_TLS = ("broker_use_ssl", "redis_backend_use_ssl")


class TarsyApp(Celery):
    """A Celery application that knows the MCP servers.

    Attributes:
        mcp_config: The servers: those of the file, as it is now; or in a worker, those that it has taken.
        worker_instance: In a worker, the name of the process: the worker's name and a unique part.
        worker_context: In a worker whose pool has started, its `WorkerContext`.
        generation: In a worker, what it has started with.
        watch: In a worker, the `FileWatch` of what it was read from.
        log_masking: In a worker, what masks its log.
        interceptors: In a worker, those of the user.
        policy: In a worker, what agents may do; None without a policy.
        is_agent: All executors of the process share it, and each of them reads the configuration when it is made.
    """

    worker_instance: str = ""
    worker_context: Any = None
    generation: Any = None
    watch: Any = None
    log_masking: Any = None
    interceptors: Sequence[Interceptor] = ()
    policy: Policy | None = None
    is_agent: bool = False
    _fixed: Config | None = None

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        stock: Any = super()
        return stock.subclass_with_self("tarsy_tasks.worker.process.shutdown:SoftlyStoppingWorker", name="Worker")

    @property
    def mcp_config(self) -> Config:
        return self._followed.look() if self._fixed is None else self._fixed

    @mcp_config.setter
    def mcp_config(self, config: Config) -> None:
        self._fixed = config

    @cached_property
    def _followed(self) -> FollowedConfig:
        return FollowedConfig()

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """As Celery's. A call that names no queue goes to the one of its server, or of its bound agent there.

        Raises:
            ToolNameError: The configuration of this machine has no such server, so nobody would take the call.
        """
        if name in (*CALLS, LIST_TOOLS) and "queue" not in options:
            server = server_of(args, kwargs)
            self._check_server(server)
            if server is not None and (agent := bound_agent(self)) is not None:
                options["queue"] = keys.agent_queue(server, agent)
        return super().send_task(name, args, kwargs, *rest, **options)

    def _check_server(self, server: str | None) -> None:
        try:
            servers = self.mcp_config.enabled_servers
        except ConfigError:
            return  # the servers are not known here
        if server is not None and server not in servers:
            resolve_server(f"{server}.tool", servers)


def mcp_config_of(app: Celery) -> Config:
    """The MCP servers that an application knows; for a stock Celery application, those of the configuration file.

    Raises:
        ConfigError: The configuration is missing or wrong.
    """
    return app.mcp_config if isinstance(app, TarsyApp) and not app.is_agent else load_config(find_config_path())


def build_app(overrides: dict[str, Any] | None = None) -> TarsyApp:
    """An application with the package's defaults, Redis from `TARSY_REDIS_URL`, and `overrides` on top.

    One merged dict, because a second `config_from_object` would replace the first, and `conf.update` would override the
    user's file.
    """
    environment = load_settings()
    redis_url = environment.redis_url.get_secret_value()
    app = TarsyApp("tarsy_tasks", set_as_current=False)
    app.loader.override_backends = dict.fromkeys(("redis", "rediss"), "tarsy_tasks.broker.result_backend:ResultBackend")
    settings: dict[str, Any] = {"broker_url": redis_url, "result_backend": redis_url, **DEFAULTS, **(overrides or {})}
    settings |= signing_settings(environment)
    # An override of one option keeps the others.
    options = {**DEFAULTS["broker_transport_options"], **settings["broker_transport_options"]}
    # What is compressed is refused, unless these processes compress so themselves.
    if kind := settings.get("task_compression"):
        options["compressions"] = [cast("Any", kombu_compression).get_encoder(kind)[1]]
    # Settings for TLS say which certificate is required.
    complete = str if any(map(settings.get, _TLS)) else ask_for_certificate
    urls = {name: RedisUrl(complete(url)) for name in _URLS if isinstance(url := settings.get(name), str)}
    app.config_from_object({**settings, **urls, "broker_transport_options": options})
    return app


def agent_app() -> TarsyApp:
    """The application of an agent's process. It reads no `celeryconfig.py`, which may be there for other tasks."""
    return _agent_app(load_settings().redis_url.get_secret_value())


@cache
def _agent_app(redis_url: str) -> TarsyApp:
    # An agent has a deadline: a Redis that hangs may delay it only by so many seconds beyond that. kombu's own attempts
    # to connect are off, because it pauses for seconds between them.
    options = {"socket_timeout": _AGENT_SOCKET_S, "socket_connect_timeout": _AGENT_SOCKET_S, "max_retries": 0}
    app = build_app(
        {
            "broker_url": redis_url,
            "result_backend": redis_url,
            "broker_transport_options": options,
            "redis_socket_timeout": _AGENT_SOCKET_S,
            "redis_socket_connect_timeout": _AGENT_SOCKET_S,
        }
    )
    app.is_agent = True
    return app


def bound_agent(app: Celery) -> str | None:
    """The bound agent that an application publishes as: the user in the URL of its broker (`bound_agent_of`). None with
    another transport of kombu, which does not announce what is in an agent's queue.
    """
    if app.conf.broker_transport != kombu_transport.ALIAS:
        return None
    urls: str | list[str] | tuple[str, ...] = app.conf.broker_write_url
    return bound_agent_of((urls if isinstance(urls, str) else urls[0]).split(";")[0])


def broker_urls(app: Celery) -> list[str]:
    """The URLs of an application's broker and result backend, with their passwords."""
    found: list[str] = []
    for name in _URLS:
        value: str | list[str] | tuple[str, ...] | None = app.conf.get(name)
        # Several URLs are alternatives.
        for text in (value,) if isinstance(value, str) else value or ():
            found += text.split(";")
    return found
