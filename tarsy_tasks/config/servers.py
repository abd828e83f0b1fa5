"""The servers of a configuration.

Owns the models, their rules and defaults. Loading them is in `loading`; texts keep their `${NAME}` until a worker
resolves them (`variables`).
"""

import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tarsy_tasks.config.agent_credentials import (
    OTHER_FIELDS,
    AgentCredentials,
    find_agent_variables,
    refuse_agent_references,
)
from tarsy_tasks.config.approval import Approval, ApprovalSetting
from tarsy_tasks.config.auth import ApiKeyAuth, Auth
from tarsy_tasks.config.by_tool import find_for_tool
from tarsy_tasks.config.cache import Cache
from tarsy_tasks.config.elicitation import Elicitation
from tarsy_tasks.config.error_budget import ErrorBudget
from tarsy_tasks.config.isolated_settings import Isolated
from tarsy_tasks.config.masking import Masking
from tarsy_tasks.config.problems import describe_kind, quote, suggest
from tarsy_tasks.config.sandbox import SandboxSetting
from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN
from tarsy_tasks.config.summarization import Summarization
from tarsy_tasks.config.texts import Command, EnvName, HeaderName, HeaderValue, HiddenTexts, Line, Model, Text, Url
from tarsy_tasks.config.transports import TRANSPORTS, read_transport, transport_of_url
from tarsy_tasks.config.variables import RESOLVED, is_broker_variable

__all__ = ["Config", "Retry", "ServerConfig", "Timeouts"]

_KINDS = {"command": "stdio", "url": "http", "native": "stdio"}
"""The keys of which each server has one, and the transport that it means."""
_STDIO_KEYS = ("args", "env", "variables_file", "cwd", "inherit_env", "sandbox")
_HTTP_KEYS = ("headers", "auth", "verify_ssl", "ca_file")

_IDLE_STOP_S = 300
_ResultLimit = Annotated[int, Field(ge=16_384, le=1_048_576)]
"""Less would not hold the escaped characters of results that are not measured, because they are small."""
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Timeouts(Model):
    """How long to wait for a server, in seconds."""

    connect_s: _Seconds = Field(default=30, description="Starting or reaching the server, up to its first answer.")
    list_s: _Seconds = Field(default=10, description="Listing its tools.")
    call_s: _Seconds = Field(default=60, description="One tool call.")
    recreate_s: _Seconds = Field(default=10, description="Replacing a lost session.")
    task_s: _Seconds = Field(
        default=24 * 3600,
        le=30 * 24 * 3600,
        description="A task that the server has answered a call with, if the caller waits for parked calls.",
    )
    tools: dict[Annotated[str, Field(min_length=1)], _Seconds] = Field(
        default_factory=dict,
        description="Instead of `call_s`: by the name of a tool, or else by the first glob (`get_*`) that matches.",
    )
    progress_extends: bool = Field(
        default=False,
        description="Whether progress gives a call to whose events somebody listens its time again, counted from then.",
    )
    progress_limit_s: _Seconds = Field(
        default=600, description="How long such a call may take in all, from when it is sent."
    )

    @property
    def longest_call_s(self) -> float:
        """No call can take longer."""
        return max(self.call_s, *self.tools.values(), self.extended_s)

    @property
    def extended_s(self) -> float:
        """How long progress can keep a call running; 0 if it cannot."""
        return self.progress_limit_s if self.progress_extends else 0

    def call_timeout_s(self, tool: str) -> float:
        """Seconds that a call of `tool` may take."""
        found = find_for_tool(tool, self.tools)
        return self.call_s if found is None else found


class Retry(Model):
    """How a call is sent again after a failure of the session; an error of the tool is never retried."""

    attempts: int = Field(
        default=2,
        ge=1,
        le=10,
        description="How many times a call that may have run is sent at most; 1: it is never sent again.",
    )
    min_wait_s: _Seconds = Field(default=0.25, description="The shortest wait before a call is sent again.")
    max_wait_s: _Seconds = Field(default=0.75, description="The longest first wait; it doubles with each retry.")

    @model_validator(mode="after")
    def _validate_order(self) -> "Retry":
        if self.min_wait_s > self.max_wait_s:
            raise ValueError(f"min_wait_s ({self.min_wait_s:g}) is greater than max_wait_s ({self.max_wait_s:g})")
        return self


def _validate_module(path: str) -> str:
    if not all(name.isidentifier() for name in path.split(".")):
        raise ValueError(f"{quote(path[:80])} is not the import path of a module, such as `my_package.tools`")
    return path


class ServerConfig(Model):
    """One MCP server: a program to start (`command`), a URL (`url`), or a module with functions (`native`)."""

    name: str = Field(pattern=SERVER_ID_PATTERN, description="The server's id.")
    description: str | None = Field(default=None, description="For people who read the file.")
    command: Command | None = Field(default=None, description="stdio: the program to start.")
    args: list[Text] = Field(default_factory=list, repr=False, description="stdio: the program's arguments.")
    env: Annotated[dict[EnvName, Text], AfterValidator(HiddenTexts)] = Field(
        default_factory=HiddenTexts, repr=False, description="stdio: environment variables of the program."
    )
    variables_file: Line | None = Field(
        default=None,
        description="stdio: a file of lines `NAME=value` with more environment variables; `env` precedes it.",
    )
    inherit_env: Literal["all", "minimal"] | list[Annotated[str, Field(min_length=1)]] = Field(
        default="all",
        description="stdio: which of the worker's variables the program inherits. all: all except credentials of the "
        "broker and those that only other servers refer to; minimal: a few such as PATH; a list: these and the named "
        "ones (`AWS_*`).",
    )
    cwd: Line | None = Field(default=None, description="stdio: the program's working directory.")
    sandbox: SandboxSetting = Field(
        default=None,
        description="stdio: what its processes may read, write and use. off (the default); strict; no-network: files "
        "as without a sandbox; or a mapping.",
    )
    url: Url | None = Field(default=None, repr=False, description="http, sse: the URL of the server's endpoint.")
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(HiddenTexts)] = Field(
        default_factory=HiddenTexts, repr=False, description="http, sse: headers of each request."
    )
    auth: Auth | None = Field(default=None, repr=False, description="http, sse: how to authenticate.")
    verify_ssl: bool = Field(default=True, description="http, sse: whether the server's certificate is verified.")
    ca_file: Line | None = Field(
        default=None,
        description="http, sse: a PEM file of the certificate authorities to trust.",
    )
    native: Annotated[str, AfterValidator(_validate_module)] | None = Field(
        default=None,
        description="A module with functions that are tools (`native_tool`), by its import path; the worker starts a "
        "program that serves them over stdio.",
    )
    # After the fields that its validator reads.
    transport: Literal["stdio", "http", "sse"] = Field(
        default="stdio",
        description="stdio is the default with `command`, http (Streamable HTTP) with `url`, and sse (older servers) "
        "with a `url` that ends in `/sse`.",
    )
    enabled: bool = Field(default=True, description="Whether the server is used at all.")
    required: bool = Field(default=True, description="Whether a worker with a strict start fails without it.")
    start: Literal["eager", "on_demand"] = Field(
        default="eager",
        description="eager: it is connected when a worker starts, and stays so. on_demand: when it is first used, and "
        "until it was idle for `idle_stop_s`.",
    )
    idle_stop_s: float | None = Field(
        default=None,
        ge=1,
        allow_inf_nan=False,
        description="With `start: on_demand`: after so many seconds with nothing in flight it is stopped; by default "
        f"{_IDLE_STOP_S}.",
    )
    timeouts: Timeouts = Field(default_factory=Timeouts, description="How long to wait for the server.")
    session: Literal["shared", "per_call"] = Field(
        default="shared",
        description="Whether calls share one session, or each has its own, for servers that keep state in a session.",
    )
    isolated: Isolated = Field(default_factory=Isolated, description="How sessions of single runs are kept.")
    max_concurrency: int | None = Field(
        default=None,
        ge=1,
        description="How many calls of the server one worker process runs at once; the default is half of its slots.",
    )
    error_budget: ErrorBudget | None = Field(
        default=None, description="How many of its calls may fail before all workers suspend it; by default any number."
    )
    cache: Cache | None = Field(default=None, description="Which of its answers are kept for a while; by default none.")
    retry: Retry = Field(default_factory=Retry, description="How a call is sent again after a failure of the session.")
    replay: Literal["hinted", "always", "never"] = Field(
        default="hinted",
        description="Whether a call that may have run is sent again. hinted: if the tool is harmless to repeat "
        "(`readOnlyHint`, `idempotentHint` or `idempotent_tools`).",
    )
    idempotent_tools: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="Names or globs (`get_*`) of tools that are harmless to repeat, in addition to those with a hint.",
    )
    max_message_bytes: int = Field(
        default=16 * 1024 * 1024, gt=0, description="The longest message that is read from the server."
    )
    result_limit: _ResultLimit = Field(
        default=65_536,
        description="Characters of the text of a result; of a longer one a model gets the beginning and the end, and "
        "how to read the rest.",
    )
    result_limits: dict[Annotated[str, Field(min_length=1)], _ResultLimit] = Field(
        default_factory=dict,
        description="Instead of `result_limit`: by the name of a tool, or else by the first glob (`get_*`) that "
        "matches.",
    )
    summarization: Summarization | None = Field(
        default=None, description="Which of its results agents have summarized, if they have a `summarizer`."
    )
    pin: Literal["warn", "block"] = Field(
        default="warn",
        description="What happens to a tool whose definition changed since its approval. warn: the log and `tools "
        "diff` show it; block: its calls are also rejected until `tools approve`.",
    )
    approval: ApprovalSetting = Field(
        default_factory=Approval,
        description="Which calls a person has to approve before they are sent: `always`, `destructive`, `never`, or a "
        "mapping.",
    )
    elicitation: Elicitation = Field(
        default_factory=Elicitation, description="How long calls wait for input that the server asks for."
    )
    masking: Masking = Field(
        default_factory=Masking, description="What is masked in results, errors and output of the server."
    )
    instructions: str | None = Field(
        default=None,
        description="Instructions for models that use the server, instead of those of the server itself.",
    )
    # After the fields that its validator reads.
    agent_credentials: AgentCredentials = Field(
        default_factory=AgentCredentials,
        validate_default=True,
        description="How it is used with the credentials of agents, if `env`, `headers` or `auth` refer to "
        "`${agent:NAME}`.",
    )

    def result_limit_of(self, tool: str) -> int:
        """Characters of the text of a result of `tool`."""
        found = find_for_tool(tool, self.result_limits)
        return self.result_limit if found is None else found

    @property
    def command_line(self) -> str | None:
        """What is started, as configured; None for a server that is not."""
        if self.native is not None:
            return f"native {self.native}"
        return None if self.command is None else shlex.join([self.command, *self.args])

    @model_validator(mode="before")
    @classmethod
    def _infer_transport(cls, data: JsonValue) -> JsonValue:
        if isinstance(data, dict) and read_transport(data.get("transport", "remote")) == "":
            return {**data, "transport": transport_of_url(data.get("url"))}
        return data

    @field_validator("inherit_env", mode="before")
    @classmethod
    def _validate_inheritance(cls, value: object) -> object:
        if value in ("all", "minimal"):
            return value
        if not isinstance(value, list):
            raise ValueError(f"found {describe_kind(value)}, expected `all`, `minimal` or a list of names")  # pyright: ignore[reportUnknownArgumentType]
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(each, str) and is_broker_variable(each):
                raise ValueError(
                    f"{quote(each)} belongs to the worker and is not inherited; set it in `env` if the server needs it"
                )
        return value  # pyright: ignore[reportUnknownVariableType]

    @field_validator(*OTHER_FIELDS)
    @classmethod
    def _validate_no_agent(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is not RESOLVED:
            refuse_agent_references(value)
        return value

    @field_validator("agent_credentials")
    @classmethod
    def _validate_agent_credentials(cls, value: AgentCredentials, info: ValidationInfo) -> AgentCredentials:
        if info.context is not RESOLVED:
            value.require_sense(info.data)
        return value

    @property
    def agent_variables(self) -> frozenset[str]:
        """The names of the credentials of agents that it refers to."""
        return find_agent_variables(dict(self))

    @property
    def keeps_tasks(self) -> bool:
        """Whether a task of the server can outlive its call: it does not go with a session or a process of its own."""
        return self.transport == "http" or (
            self.transport == "stdio" and self.session == "shared" and self.stops_after_s is None
        )

    @property
    def stops_after_s(self) -> float | None:
        """For how long nothing is in flight when it is stopped; None: it is not stopped."""
        return None if self.start == "eager" else self.idle_stop_s or _IDLE_STOP_S

    @field_validator("idle_stop_s")
    @classmethod
    def _validate_idle_stop(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and info.data.get("start") == "eager":
            raise ValueError("a server that starts with its worker is never stopped; add `start: on_demand`")
        return value

    @field_validator("transport", mode="before")
    @classmethod
    def _validate_transport(cls, value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str):
            raise ValueError(f"found {describe_kind(value)}, expected `stdio`, `http` or `sse`")
        transport = read_transport(value)
        if transport is None:
            raise ValueError(f"{quote(value[:40])} is not a transport; {suggest(value, TRANSPORTS)}")
        if info.data.keys() >= _KINDS.keys():  # else one of them is invalid, which is reported already
            _validate_kind(transport, info.data)
        return transport


def _validate_kind(transport: str, given: dict[str, Any]) -> None:
    """Raise a `server_kind` error, which is about the whole entry, if its keys do not fit together."""
    kinds = [kind for kind in _KINDS if given[kind] is not None]
    if len(kinds) > 1:
        both = " and ".join(f"`{kind}` ({_KINDS[kind]})" for kind in kinds[:2])
        text = f"both {both} are set; keep only one of them"
    elif not kinds:
        text = "neither `command` (stdio) nor `url` (http) is set; set one of them"
    elif transport == "stdio" and kinds == ["url"]:
        text = "the transport is stdio, but `url` is set; set `command`, or the transport http"
    elif transport != "stdio" and kinds != ["url"]:
        text = f"the transport is {transport}, but `{kinds[0]}` is set; set `url`, or the transport stdio"
    elif kinds == ["native"] and _is_set(given, "args"):
        text = "`native` does not use args; remove it"
    elif unused := [key for key in (_HTTP_KEYS if transport == "stdio" else _STDIO_KEYS) if _is_set(given, key)]:
        them = "it" if len(unused) == 1 else "them"
        text = f"the transport {transport} does not use {', '.join(unused)}; remove {them}"
    elif (header := _auth_header(given)) and any(name.lower() == header for name in given.get("headers", ())):
        text = f"`auth` sets the header {header.title()}, which is also in `headers`; keep only one of them"
    else:
        return
    raise PydanticCustomError("server_kind", "{text}", {"text": text})


def _auth_header(given: dict[str, Any]) -> str | None:
    """The header that `auth` sets, in lower case."""
    auth: Any = given.get("auth")
    if isinstance(auth, ApiKeyAuth):
        return auth.name.lower() if auth.location == "header" else None
    return None if auth is None else "authorization"


def _is_set(given: dict[str, Any], key: str) -> bool:
    return key in given and given[key] != ServerConfig.model_fields[key].get_default(call_default_factory=True)


class Config(Model):
    """A configuration.

    Attributes:
        servers: All servers, by id; including those that are not enabled.
        interceptors: Names of the interceptors of the user that every call passes, in this order.
    """

    servers: dict[str, ServerConfig] = Field(default_factory=dict)
    interceptors: tuple[str, ...] = ()

    @property
    def enabled_servers(self) -> dict[str, ServerConfig]:
        """The servers in use."""
        return {server_id: server for server_id, server in self.servers.items() if server.enabled}
