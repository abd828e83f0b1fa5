"""What the environment says about this process: `TARSY_…` variables.

Owns their names and defaults, each written once. Nothing is read at import: build a `Settings` where its values are
needed.
"""

from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarsy_tasks.errors import ConfigError

__all__ = ["Settings", "load_settings"]


class Settings(BaseSettings):
    """The variables of now; an empty one counts as unset.

    Attributes:
        mcp_config: `TARSY_MCP_CONFIG`, the configuration file. None: look in the working directory.
        redis_url: `TARSY_REDIS_URL`, broker and result backend. It may hold a password.
    """

    model_config = SettingsConfigDict(
        env_prefix="TARSY_", env_ignore_empty=True, frozen=True, hide_input_in_errors=True
    )

    mcp_config: Path | None = None
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", repr=False, pattern=r"^rediss?://[^\s/]")


def load_settings() -> Settings:
    """The variables of now.

    Raises:
        ConfigError: One of them cannot be right.
    """
    try:
        return Settings()
    except ValidationError as error:
        names = ", ".join(f"TARSY_{'_'.join(map(str, each['loc'])).upper()}" for each in error.errors())
        raise ConfigError(
            f"{names}: not understood; TARSY_REDIS_URL is like redis://127.0.0.1:6379/0 (or rediss://…), "
            "TARSY_MCP_CONFIG the path of a file"
        ) from None
