from pathlib import Path
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TARSY_")
    mcp_config: Path | None = None
    redis_url: str = "redis://127.0.0.1:6379/0"
