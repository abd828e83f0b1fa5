"""JSON Schema of a configuration file, for editors.

Owns the parts that the models do not contain: the alternative keys of a file, and the keys with paths of files.
"""

from typing import Any

from tarsy_tasks.config.auth import AUTH_MODELS
from tarsy_tasks.config.key_rules import AUTH_FILE_KEYS
from tarsy_tasks.config.servers import ServerConfig
from tarsy_tasks.config.transports import TRANSPORTS

__all__ = ["config_schema"]

_FILE: dict[str, Any] = {"type": "string", "minLength": 1}
_FILES: dict[str, Any] = {"type": "object", "additionalProperties": _FILE}


def config_schema() -> dict[str, Any]:
    """JSON Schema of a configuration file, in the form with `mcpServers`."""
    server = ServerConfig.model_json_schema()
    definitions: dict[str, Any] = server.pop("$defs")
    for model in AUTH_MODELS.values():
        _allow_files(definitions[model.__name__])
    properties: dict[str, Any] = server["properties"]
    del properties["name"], server["required"]  # the name is the key of the entry
    transport = {"type": "string", "enum": [*TRANSPORTS], "description": properties["transport"]["description"]}
    properties |= {
        "transport": {"title": "Transport", **transport},
        "type": {"title": "Type", **transport},
        "disabled": {"title": "Disabled", "type": "boolean", "description": "The opposite of `enabled`."},
        "bearer_token": {
            "title": "Bearer token",
            "type": "string",
            "minLength": 1,
            "description": "Short for `auth` with the type bearer.",
        },
        "bearer_token_file": {**_FILE, "description": "Short for `auth` with the type bearer and a `token_file`."},
        "url_file": {**_FILE, "description": "A file that contains the `url`."},
        "env_file": {**_FILES, "description": "Files that contain values of `env`, by variable name."},
        "headers_file": {**_FILES, "description": "Files that contain values of `headers`, by header name."},
    }
    server["oneOf"] = [{"required": [key]} for key in ("command", "url", "url_file", "native")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "MCP servers of tarsy-tasks",
        "type": "object",
        "additionalProperties": False,
        "required": ["mcpServers"],
        "properties": {
            "$schema": {"type": "string", "description": "For editors: the URL of this schema."},
            "mcpServers": {
                "type": "object",
                "description": "The servers by name. The id of a server called `my server` is `my-server`.",
                "additionalProperties": {"$ref": "#/$defs/ServerConfig"},
            },
            "interceptors": {
                "type": "array",
                "items": {"type": "string"},
                "uniqueItems": True,
                "description": "Names of installed interceptors that every call passes, in this order.",
            },
        },
        "$defs": {**definitions, "ServerConfig": server},
    }


def _allow_files(auth: dict[str, Any]) -> None:
    """Allow a file for each string of an `auth` that may come from one."""
    for key, meant in AUTH_FILE_KEYS.items():
        if meant in auth["properties"]:
            auth["properties"][key] = {**_FILE, "description": f"A file that contains the `{meant}`."}
            both = {"required": [meant, key]}
            if meant in auth["required"]:
                auth["required"].remove(meant)
                auth.setdefault("allOf", []).append({"oneOf": [{"required": [meant]}, {"required": [key]}]})
            else:
                auth.setdefault("allOf", []).append({"not": both})
    if "token_url" in auth["properties"]:
        auth["allOf"].append({"oneOf": [{"required": ["token_url"]}, {"required": ["issuer"]}]})
