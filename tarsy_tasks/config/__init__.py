"""The configuration: which MCP servers there are, how to reach each, and how long to wait for it.

`servers` has the models and loading, `auth` and `texts` what they consist of, `masking` what is masked, `file` and
`yaml_tree` the syntax, `dialects` the spellings of other programs, `problems` the words of an error, `json_schema` both
for editors. `variables` and `secret_files` are what a worker resolves, `resolved` what comes of it, `secret_places`
where secrets stand, `inheritance` what a server's process gets of the worker's environment. Agents import this: it
stays free of `yaml`, `mcp` and `celery`.
"""

from tarsy_tasks.config.inheritance import variables_of
from tarsy_tasks.config.json_schema import config_schema
from tarsy_tasks.config.loading import check_secrets, find_config_path, load_config
from tarsy_tasks.config.masking import Masking
from tarsy_tasks.config.resolved import resolve_variables
from tarsy_tasks.config.servers import (
    ApiKeyAuth,
    BearerAuth,
    Config,
    OAuthClientCredentials,
    Retry,
    ServerConfig,
    Timeouts,
)

__all__ = [
    "ApiKeyAuth",
    "BearerAuth",
    "Config",
    "Masking",
    "OAuthClientCredentials",
    "Retry",
    "ServerConfig",
    "Timeouts",
    "check_secrets",
    "config_schema",
    "find_config_path",
    "load_config",
    "resolve_variables",
    "variables_of",
]
