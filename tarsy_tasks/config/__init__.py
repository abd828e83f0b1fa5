"""The configuration: which MCP servers there are, how to reach each, and how long to wait for it.

`servers` has the models and loading, `file` and `yaml_tree` the syntax, `dialects` the spellings of other programs,
`masking` what is masked, `variables` what a worker resolves, `problems` the words of an error. Agents import this: it
stays free of `yaml`, `mcp` and `celery`.
"""

from tarsy_tasks.config.masking import Masking
from tarsy_tasks.config.servers import (
    BearerAuth,
    Config,
    Retry,
    ServerConfig,
    Timeouts,
    config_schema,
    find_config_path,
    load_config,
)
from tarsy_tasks.config.variables import resolve_variables, variables_of

__all__ = [
    "BearerAuth",
    "Config",
    "Masking",
    "Retry",
    "ServerConfig",
    "Timeouts",
    "config_schema",
    "find_config_path",
    "load_config",
    "resolve_variables",
    "variables_of",
]
