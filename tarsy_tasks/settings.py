"""What the environment says about this process: `TARSY_…` variables.

Owns their names and defaults, each written once. Nothing is read at import: load the `Settings` where their values are
needed. Each that is a `SecretStr` may also come from a file: `TARSY_REDIS_URL_FILE` names the one that holds the URL.
"""

import base64
import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.secret_files import read_secret_file

__all__ = ["WEBHOOK_SECRET_PREFIX", "Settings", "load_settings"]

WEBHOOK_SECRET_PREFIX = "whsec_"  # noqa: S105 - what secrets begin with
_PREFIX = "TARSY_"


class Settings(BaseSettings):
    """The variables of now; an empty one counts as unset.

    Attributes:
        mcp_config: `TARSY_MCP_CONFIG`, the configuration file. None: look in the working directory.
        redis_url: `TARSY_REDIS_URL`, broker and result backend. It may hold a password.
        startup: `TARSY_STARTUP`, whether a worker begins without its required servers (`degraded`) or not (`strict`).
        startup_timeout_s: `TARSY_STARTUP_TIMEOUT_S`, how long a strict start tries to connect them.
        run_dir: `TARSY_RUN_DIR`, where workers keep the files that probes look at. None: a directory of this user
            among the temporary ones.
        metrics_port: `TARSY_METRICS_PORT`, where a worker serves its numbers to Prometheus; 0: nowhere.
        metrics_host: `TARSY_METRICS_HOST`, on which address.
        alert_webhook: `TARSY_ALERT_WEBHOOK`, the URL that is told of servers that fall ill or recover. It may hold a
            token.
        alert_webhook_secret: `TARSY_ALERT_WEBHOOK_SECRET`, signs what is sent there: `whsec_` and base64, or any text.
        canvas: `TARSY_CANVAS`, what a worker sends when a task is done: `any` chain, chord or callback, or only calls
            for the `same_queue`.
        signing_key: `TARSY_SIGNING_KEY`, the file of the private key that this process signs its messages with.
        signing_certificate: `TARSY_SIGNING_CERTIFICATE`, the file of its certificate.
        signing_trusted: `TARSY_SIGNING_TRUSTED`, the directory of the certificates whose messages this process takes;
            others it refuses.
        audit_entries: `TARSY_AUDIT_ENTRIES`, about how many entries the audit keeps in Redis; 0: none.
        audit_file: `TARSY_AUDIT_FILE`, to which workers append entries as lines of JSON.
        audit_required: `TARSY_AUDIT_REQUIRED`, whether a call that cannot be written to the audit is not made.
        shutdown_grace_s: `TARSY_SHUTDOWN_GRACE_S`, how long calls may go on running after SIGTERM. Kubernetes kills
            after 30 s.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, hide_input_in_errors=True)

    mcp_config: Path | None = None
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    startup: Literal["strict", "degraded"] = "strict"
    startup_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    run_dir: Path | None = None
    metrics_port: int = Field(default=0, ge=0, le=65535)
    metrics_host: str = "127.0.0.1"
    alert_webhook: SecretStr | None = None
    alert_webhook_secret: SecretStr | None = None
    canvas: Literal["any", "same_queue"] = "any"
    signing_key: Path | None = None
    signing_certificate: Path | None = None
    signing_trusted: Path | None = None
    audit_entries: int = Field(default=100_000, ge=0)
    audit_file: Path | None = None
    audit_required: bool = False
    shutdown_grace_s: float = Field(default=20.0, ge=0, allow_inf_nan=False)

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, secret: SecretStr) -> SecretStr:
        """A password with a `/`, `?` or `#` in it ends there for kombu and redis-py, and what they take for port or
        database then is part of it, and in their errors.
        """
        url = secret.get_secret_value()
        if not re.match(r"rediss?://[^\s/]", url):
            raise ValueError("it is no address of a Redis")
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise ValueError("it has no host, or no port that can be")
        if "@" in f"{parts.path}{parts.query}{parts.fragment}":
            raise ValueError("its password is cut off")
        if not (database := parts.path.strip("/")).isdecimal() and database:
            raise ValueError("its database is no number")
        return secret

    @field_validator("alert_webhook")
    @classmethod
    def _check_webhook(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and not re.fullmatch(r"https?://[^\s/]\S*", secret.get_secret_value()):
            raise ValueError("it is no URL")
        return secret

    @field_validator("alert_webhook_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        text = secret.get_secret_value() if secret is not None else ""
        encoded = text.removeprefix(WEBHOOK_SECRET_PREFIX)
        if encoded != text and not base64.b64decode(encoded, validate=True):
            raise ValueError("it is empty")
        return secret


def load_settings() -> Settings:
    """The variables of now.

    Raises:
        ConfigError: One of them cannot be right, or names a file that cannot be read.
    """
    values = _read_files()
    try:
        settings = Settings(**values)
    except ValidationError as error:
        names = ", ".join(f"TARSY_{'_'.join(map(str, each['loc'])).upper()}" for each in error.errors())
        raise ConfigError(
            f"{names}: not understood; TARSY_REDIS_URL is like redis://user:password@127.0.0.1:6379/0 (or rediss://…), "
            "with %2F %3F %23 %40 in place of / ? # @ in a password, "
            "TARSY_MCP_CONFIG the path of a file, TARSY_STARTUP strict or degraded, "
            "TARSY_CANVAS any or same_queue, "
            "TARSY_STARTUP_TIMEOUT_S and TARSY_SHUTDOWN_GRACE_S a number of seconds, TARSY_METRICS_PORT a port, "
            "TARSY_ALERT_WEBHOOK a URL like https://alerts.example.com/hook, "
            "TARSY_ALERT_WEBHOOK_SECRET whsec_ and base64, or another text, TARSY_AUDIT_ENTRIES a number from 0, "
            "TARSY_AUDIT_REQUIRED true or false, TARSY_AUDIT_FILE the path of a file"
        ) from None
    if settings.audit_required and not settings.audit_entries and settings.audit_file is None:
        raise ConfigError(
            "TARSY_AUDIT_REQUIRED: no audit is written, so no call could ever be made: set TARSY_AUDIT_ENTRIES to more "
            "than 0, or TARSY_AUDIT_FILE"
        )
    return settings


def _read_files() -> dict[str, Any]:
    """What files hold instead of the variables themselves."""
    values: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        variable = f"{_PREFIX}{name.upper()}"
        path = os.environ.get(f"{variable}_FILE")
        if path and not os.environ.get(variable) and "SecretStr" in str(field.annotation):
            try:
                values[name] = SecretStr(read_secret_file(path))
            except ValueError as error:
                raise ConfigError(f"{variable}_FILE: {error}") from None
    return values
