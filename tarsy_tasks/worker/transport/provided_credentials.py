"""The credentials of agents from a provider of the user's.

Owns finding it, and what happens when it fails, is slow or returns something else: calls of that agent are not sent.
"""

import asyncio
import inspect
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from tarsy_tasks.credential_providers import ENTRY_POINTS, MAX_AGE_S, CredentialProvider
from tarsy_tasks.errors import ConfigError, NoCredentialError
from tarsy_tasks.settings import Settings
from tarsy_tasks.worker.transport.agent_secrets import CredentialSource, SecretsDirectory

__all__ = ["ProvidedCredentials", "build_credential_source"]

_LIMIT_S = 10.0
_SETTING = "TARSY_CREDENTIAL_PROVIDER"


class ProvidedCredentials:
    """A `CredentialSource`.

    Args:
        name: Of the entry point.

    Raises:
        ConfigError: It is not a provider.
    """

    def __init__(self, name: str, provider: CredentialProvider, limit_s: float = _LIMIT_S) -> None:
        max_age_s: Any = getattr(provider, "max_age_s", MAX_AGE_S)
        if not inspect.iscoroutinefunction(getattr(provider, "read", None)):
            raise ConfigError(f"{_SETTING}: {name!r} is not a provider: it needs an async `read(agent, names)`")
        if not isinstance(max_age_s, int | float) or not max_age_s >= 0:
            raise ConfigError(f"{_SETTING}: `max_age_s` of {name!r} is {max_age_s!r}, expected a number of seconds")
        self.max_age_s = float(max_age_s)
        self._name = name
        self._provider = provider
        self._limit_s = limit_s

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        """As `CredentialSource.read`."""
        try:
            async with asyncio.timeout(self._limit_s):
                found: Any = await self._provider.read(agent, sorted(names))
        except NoCredentialError:
            raise
        except TimeoutError:
            raise self._error(f"did not answer within {self._limit_s:g} s") from None
        except Exception as error:
            raise self._error(f"failed: {type(error).__name__}: {error}") from error
        if not isinstance(found, Mapping):
            raise self._error(f"returned {type(found).__name__}, not a mapping")
        values = cast("Mapping[str, Any]", found)
        return {name: self._check(name, values.get(name)) for name in names}

    def _check(self, name: str, value: Any) -> str:
        if value is None:
            raise NoCredentialError(f"the credential provider {self._name} returned no {name}")
        # In a header it would be none, or end it.
        if not isinstance(value, str) or not value or not value.isprintable():
            raise self._error(f"returned a {name} that is not one line of text")
        return value

    def _error(self, how: str) -> ConfigError:
        return ConfigError(f"the credential provider {self._name} {how}")


def build_credential_source(settings: Settings) -> CredentialSource:
    """Where the credentials of agents come from.

    Raises:
        ConfigError: The provider is not installed, cannot be loaded, or is none.
    """
    name = settings.credential_provider
    if name is None:
        return SecretsDirectory(settings.agent_secrets)
    if settings.agent_secrets is not None:
        raise ConfigError(f"both {_SETTING} and TARSY_AGENT_SECRETS are set; keep only one of them")
    found = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        installed = ", ".join(sorted(found)) or "none"
        raise ConfigError(
            f"{_SETTING}: {name!r} is not installed; installed entry points in {ENTRY_POINTS}: {installed}"
        )
    try:
        value: Any = found[name].load()
        provider: Any = value() if isinstance(value, type) else value
    except Exception as error:
        raise ConfigError(f"{_SETTING}: {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return ProvidedCredentials(name, provider)
