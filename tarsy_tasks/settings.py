"""The `TARSY_…` environment variables of this process.

Owns their names and defaults, each written once. Nothing is read at import: load the `Settings` where their values are
needed. A variable that is a `SecretStr` can also come from a file: `TARSY_REDIS_URL_FILE` names the file with the URL.
Two kinds are not settings: `TARSY_ACL_…` are the passwords for `cli.acl`, and a worker marks its child processes with
`TARSY_CHILD_OF` (`worker.transport.watchdog`).
"""

import base64
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.secret_files import read_secret_file

__all__ = ["WEBHOOK_SECRET_PREFIX", "Settings", "find_setting_files", "load_settings"]

WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105 - what secrets begin with
_PREFIX = "TARSY_"
_KEY_BYTES = 32


class Settings(BaseSettings):
    """The values of the variables; an empty variable counts as unset.

    Attributes:
        mcp_config: `TARSY_MCP_CONFIG`, the configuration file, or `redis` for the one in Redis. None: look in the
            working directory.
        policy: `TARSY_POLICY`, the file of the policy. None: the configuration file may have one.
        redis_url: `TARSY_REDIS_URL`, broker and result backend. It may contain a password.
        agent_secrets: `TARSY_AGENT_SECRETS`, the directory with the credentials of agents.
        credential_provider: `TARSY_CREDENTIAL_PROVIDER`, the entry point from which they come in place of it.
        startup: `TARSY_STARTUP`, whether a worker starts without its required servers (`degraded`) or not (`strict`).
        startup_timeout_s: `TARSY_STARTUP_TIMEOUT_S`, how long a strict start tries to connect them.
        run_dir: `TARSY_RUN_DIR`, where workers keep the files for liveness probes. None: a directory of this user in
            the temporary directory.
        metrics_port: `TARSY_METRICS_PORT`, where a worker serves its metrics to Prometheus; 0: nowhere.
        metrics_host: `TARSY_METRICS_HOST`, on which address.
        alert_webhook: `TARSY_ALERT_WEBHOOK`, the URL that receives alerts. It may contain a token.
        alert_webhook_secret: `TARSY_ALERT_WEBHOOK_SECRET`, signs the alerts: `whsec_` and base64, or any text.
        token_key: `TARSY_TOKEN_KEY`, encrypts the OAuth tokens in Redis: 32 bytes in base64; after a space,
            former keys, which still decrypt.
        approval_webhook: `TARSY_APPROVAL_WEBHOOK`, the URL that gets each call which waits for an approval.
        approval_secret: `TARSY_APPROVAL_SECRET`, signs these requests and the links to the dashboard in them; Flower
            needs it, too.
        dashboard_url: `TARSY_DASHBOARD_URL`, where browsers reach Flower, for these links.
        canvas: `TARSY_CANVAS`, what a worker sends when a task is done: `any` chain, chord or callback, or only calls
            for the `same_queue`. None: as `broker.binding` decides.
        signing_key: `TARSY_SIGNING_KEY`, the file of the private key that signs this process's messages.
        signing_certificate: `TARSY_SIGNING_CERTIFICATE`, the file of its certificate.
        signing_trusted: `TARSY_SIGNING_TRUSTED`, the directory of the certificates whose messages this process accepts;
            it refuses others.
        audit_entries: `TARSY_AUDIT_ENTRIES`, about how many entries the audit keeps in Redis; 0: none.
        audit_file: `TARSY_AUDIT_FILE`, to which workers append entries as lines of JSON.
        audit_required: `TARSY_AUDIT_REQUIRED`, whether a call is refused that cannot be written to the audit.
        parked_calls: `TARSY_PARKED_CALLS`, how many calls of one principal may wait parked at once; 0: any number.
        large_result_bytes: `TARSY_LARGE_RESULT_BYTES`, how many bytes of large results workers keep for each agent,
            compressed; 0: none.
        dashboard_hosts: `TARSY_DASHBOARD_HOSTS`, the host names that Flower answers to, separated by commas.
        dashboard_token: `TARSY_DASHBOARD_TOKEN`, which opens Flower as part of a link.
        shutdown_grace_s: `TARSY_SHUTDOWN_GRACE_S`, how long calls may continue after SIGTERM. Kubernetes kills after
            30 s.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, hide_input_in_errors=True)

    mcp_config: Path | None = None
    policy: Path | None = None
    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="a URL such as redis://user:password@127.0.0.1:6379/0 or rediss://…, with %2F %3F %23 %40 for "
        "/ ? # @ in the password",
    )
    agent_secrets: Path | None = None
    credential_provider: str | None = None
    startup: Literal["strict", "degraded"] = Field(default="strict", description="strict or degraded")
    startup_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False, description="a number of seconds above 0")
    run_dir: Path | None = None
    metrics_port: int = Field(default=0, ge=0, le=65535, description="a port, or 0")
    metrics_host: str = "127.0.0.1"
    alert_webhook: SecretStr | None = Field(default=None, description="a URL such as https://alerts.example.com/hook")
    alert_webhook_secret: SecretStr | None = Field(default=None, description="whsec_ and base64, or another text")
    token_key: SecretStr | None = Field(
        default=None, description="32 bytes in base64, as of `openssl rand -base64 32`; former keys after a space"
    )
    approval_webhook: SecretStr | None = Field(default=None, description="a URL such as https://chat.example.com/hook")
    approval_secret: SecretStr | None = Field(default=None, description="whsec_ and base64, or another text")
    dashboard_url: str | None = Field(
        default=None, pattern=r"^https?://[^\s/?#]+[^\s?#]*$", description="a URL such as https://flower.example.com"
    )
    canvas: Literal["any", "same_queue"] | None = Field(default=None, description="any or same_queue")
    signing_key: Path | None = None
    signing_certificate: Path | None = None
    signing_trusted: Path | None = None
    audit_entries: int = Field(default=100_000, ge=0, description="a whole number from 0")
    audit_file: Path | None = None
    audit_required: bool = Field(default=False, description="true or false")
    parked_calls: int = Field(default=10_000, ge=0, description="a whole number from 0")
    large_result_bytes: int = Field(default=64 * 1024 * 1024, ge=0, description="a number of bytes, or 0")
    dashboard_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    dashboard_token: SecretStr | None = None
    shutdown_grace_s: float = Field(default=20.0, ge=0, allow_inf_nan=False, description="a number of seconds from 0")

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, secret: SecretStr) -> SecretStr:
        """Refuse a password with a `/`, `?` or `#`: kombu and redis-py end it there, take the rest for port or
        database, and show it in their errors.
        """
        url = secret.get_secret_value()
        if not re.match(r"rediss?://[^\s/]", url):
            raise ValueError("not the URL of a Redis")
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("no host, or an impossible port")
        if "@" in f"{parts.path}{parts.query}{parts.fragment}":
            raise ValueError("the password is cut off")
        if not (database := parts.path.strip("/")).isdecimal() and database:
            raise ValueError("the database is not a number")
        return secret

    @field_validator("dashboard_hosts", mode="before")
    @classmethod
    def _split_names(cls, names: Any) -> Any:
        return tuple(name.strip() for name in names.split(",") if name.strip()) if isinstance(names, str) else names

    @field_validator("alert_webhook", "approval_webhook")
    @classmethod
    def _check_webhook(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not re.fullmatch(r"https?://[^\s/]\S*", secret.get_secret_value()):
            raise ValueError("not a URL")
        return secret

    @field_validator("alert_webhook_secret", "approval_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        text = secret.get_secret_value() if secret is not None else ""
        encoded = text.removeprefix(WEBHOOK_SECRET_PREFIX)
        if encoded != text and not base64.b64decode(encoded, validate=True):
            raise ValueError("empty")
        return secret

    @field_validator("token_key")
    @classmethod
    def _check_token_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and any(len(key) != _KEY_BYTES for key in _decode_keys(secret)):
            raise ValueError("a key of another length")
        return secret

    @property
    def token_keys(self) -> list[bytes]:
        """The keys of `token_key`, the current one first."""
        return [] if self.token_key is None else _decode_keys(self.token_key)


def _decode_keys(secret: SecretStr) -> list[bytes]:
    """Of either alphabet of base64. Raises `ValueError` if there is none, or one is not base64."""
    keys = [base64.b64decode(text, b"-_" if {*"-_"} & {*text} else None, validate=True) for text in _split(secret)]
    if not keys:
        raise ValueError("empty")
    return keys


def _split(secret: SecretStr) -> list[str]:
    return secret.get_secret_value().split()


def load_settings() -> Settings:
    """The variables as they are set now.

    Raises:
        ConfigError: One of them is not valid, or names a file that cannot be read.
    """
    variables = ((name, value) for name, value in os.environ.items() if name.upper().startswith(_PREFIX))
    return _parse(tuple(variables), tuple(_read_files().items()))


# A worker loads its settings some twenty times when it starts.
@lru_cache(maxsize=1)
def _parse(variables: tuple[tuple[str, str], ...], files: tuple[tuple[str, Any], ...]) -> Settings:  # noqa: ARG001
    """The settings of these values, which are also the key of the cache.

    Args:
        variables: Those of the process; `Settings` reads them itself.
        files: The values that come from files in place of variables.
    """
    try:
        settings = Settings(**dict(files))
    except ValidationError as error:
        problems = [_describe(str(each["loc"][0]).lower(), each["msg"]) for each in error.errors()]
        raise ConfigError("; ".join(problems)) from None
    if settings.audit_required and not settings.audit_entries and settings.audit_file is None:
        raise ConfigError(
            "TARSY_AUDIT_REQUIRED: no audit is written, so every call would be refused; set TARSY_AUDIT_ENTRIES "
            "above 0, or TARSY_AUDIT_FILE"
        )
    return settings


def _describe(name: str, found: str) -> str:
    """What is wrong with a variable: what its field describes, or else what pydantic found."""
    description = Settings.model_fields[name].description
    return f"{_PREFIX}{name.upper()}: not valid; {f'expected {description}' if description else found}"


def find_setting_files() -> dict[str, str]:
    """The files that values come from in place of variables: their paths, by the names of these variables."""
    variables = {f"{_PREFIX}{name.upper()}": field for name, field in Settings.model_fields.items()}
    secret = [name for name, field in variables.items() if "SecretStr" in str(field.annotation)]
    paths = {name: os.environ.get(f"{name}_FILE") for name in secret if not os.environ.get(name)}
    return {name: path for name, path in paths.items() if path}


def _read_files() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, path in find_setting_files().items():
        try:
            values[variable.removeprefix(_PREFIX).lower()] = SecretStr(read_secret_file(path))
        except ValueError as error:
            raise ConfigError(f"{variable}_FILE: {error}") from None
    return values
