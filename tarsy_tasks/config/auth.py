"""How a worker authenticates to a server over HTTP: `auth` of its entry.

Owns the models. All values are secret, references or not. `worker.transport.credentials` decides what is sent.
"""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from tarsy_tasks.config.texts import HeaderName, Line, Model, SecretLine, Url

__all__ = ["AUTH_MODELS", "ApiKeyAuth", "Auth", "BearerAuth", "OAuthClientCredentials", "without_auth_type"]


class BearerAuth(Model):
    """A fixed token, sent as `Authorization: Bearer …`."""

    type: Literal["bearer"]
    token: SecretLine = Field(repr=False, description="The token, preferably as a reference such as `${GITHUB_TOKEN}`.")


class ApiKeyAuth(Model):
    """A fixed key, sent in a header or in the query of each request."""

    type: Literal["api_key"]
    key: SecretLine = Field(repr=False, description="The key, preferably as a reference such as `${WEATHER_KEY}`.")
    location: Literal["header", "query"] = Field(
        default="header", alias="in", description="Where the key is sent: in a header, or as a query parameter."
    )
    name: HeaderName = Field(default="X-API-Key", description="The name of the header or parameter.")


class OAuthClientCredentials(Model):
    """A token that the worker fetches with client credentials (RFC 6749, section 4.4), and renews before it expires."""

    type: Literal["oauth_client_credentials"]
    token_url: Url | None = Field(default=None, repr=False, description="The token endpoint.")
    issuer: Url | None = Field(
        default=None, description="The authorization server; its metadata (RFC 8414) contain the token endpoint."
    )
    client_id: Line = Field(description="The client id of the workers.")
    client_secret: SecretLine = Field(
        repr=False, description="The client secret, preferably as a reference such as `${MCP_CLIENT_SECRET}`."
    )
    client_auth: Literal["basic", "post"] = Field(
        default="basic", description="How both are sent to the token endpoint: as HTTP Basic, or in the form."
    )
    scopes: list[Line] = Field(default_factory=list, description="The scopes to request.")
    audience: Line | None = Field(default=None, description="The audience, if the token endpoint requires one.")
    resource: Line | None = Field(default=None, description="The resource of RFC 8707: the URL of the server.")

    @model_validator(mode="after")
    def _validate_endpoint(self) -> "OAuthClientCredentials":
        if (self.token_url is None) == (self.issuer is None):
            raise ValueError("set exactly one of `token_url` and `issuer`")
        return self


Auth: TypeAlias = Annotated[BearerAuth | ApiKeyAuth | OAuthClientCredentials, Field(discriminator="type")]

AUTH_MODELS: dict[str, type[BearerAuth | ApiKeyAuth | OAuthClientCredentials]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in (BearerAuth, ApiKeyAuth, OAuthClientCredentials)
}
"""Model by the value of `type`."""


def without_auth_type(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place as in the file: pydantic inserts the `type` of `auth`."""
    return ("auth", *loc[2:]) if loc[:1] == ("auth",) and len(loc) > 1 and loc[1] in AUTH_MODELS else loc
