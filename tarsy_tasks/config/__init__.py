"""The configuration: which MCP servers there are, how to reach them, how long to wait.

    loading       finds and loads a file; `file`, `json_tree`, `yaml_tree` and `toml_tree` have its syntax
    dialects      the clients whose files are understood; `roots` finds the servers, `entries` reads one by the rules of
                  `own_keys`, `key_rules`, `client_keys` and `tarsy_keys`, `placeholders` are clients' references,
                  `client_files` where clients keep their files
    servers       the models; their parts are `agent_credentials`, `approval`, `auth`, `cache`, `elicitation`,
                  `error_budget`, `isolated_settings`, `masking`, `sandbox`, `summarization` and `texts`;
                  `transports` and `server_ids` are how transports and ids are spelled, `by_tool` what is said of
                  single tools
    problems      the wording of errors; `json_schema` is the schema for editors
    variables     references to variables and files (`variables_file`: files of variables); `resolved` is a server with
                  their values
    secret_places where a server's configuration has secrets
    record        the configuration in Redis; `editing` and `record_editing` change a file, or that, for operators
    inheritance   which of the worker's environment variables a server's process inherits
    importing     a client's file in our form; `editing`, `presets` and `server_json` change and add servers
    following     for processes that only need to know the servers; `watch` notices changes of files

Agents import this package, so it imports neither `yaml` nor `mcp` nor `celery`.
"""

from tarsy_tasks.config.approval import Approval
from tarsy_tasks.config.auth import ApiKeyAuth, BearerAuth, OAuthAuth, OAuthClientCredentials, OAuthSignIn
from tarsy_tasks.config.inheritance import variables_of
from tarsy_tasks.config.json_schema import config_schema
from tarsy_tasks.config.loading import check_secrets, describe_unused, find_config_path, load_config
from tarsy_tasks.config.masking import Masking
from tarsy_tasks.config.resolved import resolve_variables
from tarsy_tasks.config.sandbox import Sandbox
from tarsy_tasks.config.servers import Config, Retry, ServerConfig, Timeouts

__all__ = [
    "ApiKeyAuth",
    "Approval",
    "BearerAuth",
    "Config",
    "Masking",
    "OAuthAuth",
    "OAuthClientCredentials",
    "OAuthSignIn",
    "Retry",
    "Sandbox",
    "ServerConfig",
    "Timeouts",
    "check_secrets",
    "config_schema",
    "describe_unused",
    "find_config_path",
    "load_config",
    "resolve_variables",
    "variables_of",
]
