"""A provider of credentials: what it may return, and that whatever else it does is an error that names it."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.credential_providers import MAX_AGE_S
from tarsy_tasks.errors import ConfigError, NoCredentialError
from tarsy_tasks.settings import Settings
from tarsy_tasks.worker.transport.provided_credentials import ProvidedCredentials, build_credential_source


class Provider:
    """Returns what it was given, or raises it."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        if isinstance(self.found, BaseException):
            raise self.found
        return {"TOKEN": f"{agent} reads {' '.join(names)}"} if self.found is None else self.found


class Hanging:
    async def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        await asyncio.Event().wait()
        raise AssertionError(agent, names)


class Blocking:
    def read(self, agent: str, names: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(names, agent)


def read(provider: Any, *names: str) -> Mapping[str, str]:
    return asyncio.run(ProvidedCredentials("vault", provider, 0.05).read("sre", names or ("TOKEN",)))


def test_a_provider_is_asked_for_an_agent_and_its_names() -> None:
    assert read(Provider(None)) == {"TOKEN": "sre reads TOKEN"}
    assert read(Provider({"A": "1", "B": "2", "C": "3"}), "B", "A") == {"B": "2", "A": "1"}


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        (Hanging(), "the credential provider vault did not answer within 0.05 s"),
        (Provider(OSError("no route to the vault")), "vault failed: OSError: no route to the vault"),
        (Provider(["TOKEN"]), "vault returned list, not a mapping"),
        (Provider({"TOKEN": ""}), "vault returned a TOKEN that is not one line of text"),
        (Provider({"TOKEN": "two\r\nlines"}), "vault returned a TOKEN that is not one line of text"),
        (Provider({"TOKEN": b"bytes"}), "vault returned a TOKEN that is not one line of text"),
    ],
    ids=["hangs", "raises", "list", "empty", "lines", "bytes"],
)
def test_what_a_provider_does_wrong_is_named(provider: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(provider)
    assert said in str(caught.value)
    assert not isinstance(caught.value, NoCredentialError)
    assert "bytes" not in str(caught.value)


def test_an_agent_without_a_credential_is_no_failure() -> None:
    with pytest.raises(NoCredentialError, match="vault returned no TOKEN"):
        read(Provider({"OTHER": "x"}))
    with pytest.raises(NoCredentialError, match="sre is not in the vault"):
        read(Provider(NoCredentialError("sre is not in the vault")))


def test_how_long_a_credential_is_used_is_for_the_provider() -> None:
    provider: Any = Provider(None)
    assert ProvidedCredentials("vault", provider).max_age_s == MAX_AGE_S
    provider.max_age_s = 5
    assert ProvidedCredentials("vault", provider).max_age_s == 5
    for wrong in (-1, "5", float("nan")):
        provider.max_age_s = wrong
        with pytest.raises(ConfigError, match="`max_age_s` of 'vault' is "):
            ProvidedCredentials("vault", provider)


def test_what_is_no_provider_is_refused() -> None:
    for value in (Blocking(), object()):
        with pytest.raises(ConfigError, match="'vault' is not a provider: it needs an async"):
            ProvidedCredentials("vault", value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="TARSY_CREDENTIAL_PROVIDER: 'vault' is not installed; installed entry"):
        build_credential_source(Settings(credential_provider="vault"))
    with pytest.raises(ConfigError, match="keep only one of them"):
        build_credential_source(Settings(credential_provider="vault", agent_secrets=Path("/run/secrets")))
