"""How a worker authenticates at a server over HTTP: `auth` of its entry.

Owns the models. Values are secret from the moment they are read, references or not. What is sent to the server because
of them is the business of `worker.transport.credentials`.
"""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from tarsy_tasks.config.texts import HeaderName, Line, Model, SecretLine, Url

__all__ = ["AUTH_MODELS", "ApiKeyAuth", "Auth", "BearerAuth", "OAuthClientCredentials", "without_auth_type"]


class BearerAuth(Model):
    """A fixed token, sent as `Authorization: Bearer …`."""

    type: Literal["bearer"]
    token: SecretLine = Field(repr=False, description="The token, best as a reference such as `${GITHUB_TOKEN}`.")


class ApiKeyAuth(Model):
    """A fixed key, sent in a header or in the query of each request."""

    type: Literal["api_key"]
    key: SecretLine = Field(repr=False, description="The key, best as a reference such as `${WEATHER_KEY}`.")
    location: Literal["header", "query"] = Field(
        default="header", alias="in", description="Where it is sent: in a header, or as a parameter of the address."
    )
    name: HeaderName = Field(default="X-API-Key", description="The name of that header or parameter.")


class OAuthClientCredentials(Model):
    """A token that the worker fetches with the credentials of a client (RFC 6749, section 4.4), and renews in time."""

    type: Literal["oauth_client_credentials"]
    token_url: Url | None = Field(default=None, repr=False, description="The token endpoint.")
    issuer: Url | None = Field(
        default=None, description="The authorization server, whose metadata (RFC 8414) name the token endpoint."
    )
    client_id: Line = Field(description="Who the worker is there.")
    client_secret: SecretLine = Field(
        repr=False, description="Its secret there, best as a reference such as `${MCP_CLIENT_SECRET}`."
    )
    client_auth: Literal["basic", "post"] = Field(
        default="basic", description="How the two are sent to the token endpoint: HTTP Basic, or in the form."
    )
    scopes: list[Line] = Field(default_factory=list, description="What the token is to allow.")
    audience: Line | None = Field(default=None, description="Whom it is for, where the token endpoint asks that.")
    resource: Line | None = Field(default=None, description="The same as RFC 8707 has it: the address of the server.")

    @model_validator(mode="after")
    def _validate_endpoint(self) -> "OAuthClientCredentials":
        if (self.token_url is None) == (self.issuer is None):
            raise ValueError("expected one of `token_url` and `issuer`")
        return self


Auth: TypeAlias = Annotated[BearerAuth | ApiKeyAuth | OAuthClientCredentials, Field(discriminator="type")]

AUTH_MODELS: dict[str, type[BearerAuth | ApiKeyAuth | OAuthClientCredentials]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in (BearerAuth, ApiKeyAuth, OAuthClientCredentials)
}
"""By the value of `type`."""


def without_auth_type(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place as it stands in the file: pydantic puts the `type` of `auth` in between."""
    return ("auth", *loc[2:]) if loc[:1] == ("auth",) and len(loc) > 1 and loc[1] in AUTH_MODELS else loc
