"""How a worker authenticates to a server over HTTP: `auth` of its entry.

Owns the models. All values are secret, references or not. `worker.transport.credentials` decides what is sent.
"""

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, model_validator

from tarsy_tasks.config.texts import HeaderName, Line, Model, SecretLine, SecretText, Url

__all__ = [
    "AUTH_MODELS",
    "ApiKeyAuth",
    "Auth",
    "BearerAuth",
    "OAuthAuth",
    "OAuthClientCredentials",
    "OAuthSignIn",
    "without_auth_type",
]


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


class OAuthAuth(Model):
    """How a client of an authorization server authenticates."""

    client_secret: SecretLine | None = Field(
        default=None, repr=False, description="The client secret, preferably as a reference such as `${CLIENT_SECRET}`."
    )
    private_key: SecretText | None = Field(
        default=None, repr=False, description="In place of the secret: a private key in PEM, which signs assertions."
    )
    key_id: Line | None = Field(default=None, description="The id of the private key, if there are several.")
    signing_algorithm: Line | None = Field(default=None, description="Of the private key; its usual one by default.")
    client_auth: Literal["basic", "post", "private_key_jwt"] | None = Field(
        default=None,
        description="How the client authenticates: the secret as HTTP Basic (default) or in the form, or the key.",
    )

    @property
    def method(self) -> Literal["none", "basic", "post", "private_key_jwt"]:
        """How the client authenticates."""
        if self.client_auth is not None:
            return self.client_auth
        if self.private_key is not None:
            return "private_key_jwt"
        return "none" if self.client_secret is None else "basic"

    @model_validator(mode="after")
    def _validate_proof(self) -> "OAuthAuth":
        if self.client_secret is not None and self.private_key is not None:
            raise ValueError("both `client_secret` and `private_key` are set; keep only one of them")
        if (self.method == "private_key_jwt") != (self.private_key is not None):
            needed = "private_key" if self.private_key is None else "client_secret"
            raise ValueError(f"`client_auth` {self.method} needs `{needed}`")
        if self.client_auth is not None and self.client_secret is None and self.private_key is None:
            raise ValueError(f"`client_auth` {self.client_auth} needs `client_secret`")
        if self.private_key is None and (self.key_id or self.signing_algorithm):
            raise ValueError("`key_id` and `signing_algorithm` are those of a `private_key`, which is missing")
        return self


class OAuthClientCredentials(OAuthAuth):
    """A token that the worker fetches with client credentials (RFC 6749, section 4.4), and renews before it expires."""

    type: Literal["oauth_client_credentials"]
    token_url: Url | None = Field(default=None, repr=False, description="The token endpoint.")
    issuer: Url | None = Field(
        default=None, description="The authorization server; its metadata (RFC 8414) contain the token endpoint."
    )
    client_id: Line = Field(description="The client id of the workers.")
    scopes: list[Line] = Field(default_factory=list, description="The scopes to request.")
    audience: Line | None = Field(default=None, description="The audience, if the token endpoint requires one.")
    resource: Line | None = Field(default=None, description="The resource of RFC 8707: the URL of the server.")

    @model_validator(mode="after")
    def _validate_endpoint(self) -> "OAuthClientCredentials":
        if (self.token_url is None) == (self.issuer is None):
            raise ValueError("set exactly one of `token_url` and `issuer`")
        if self.client_secret is None and self.private_key is None:
            raise ValueError("neither `client_secret` nor `private_key` is set; set one of them")
        return self


class OAuthSignIn(OAuthAuth):
    """Tokens of a person, who has signed in with `tarsy-tasks auth login`; workers renew them before they expire."""

    type: Literal["oauth"]
    issuer: Url | None = Field(
        default=None, description="The authorization server. By default the first that the MCP server names."
    )
    client_id: Line | None = Field(
        default=None, description="The client id, if one was registered. By default the client registers itself."
    )
    client_metadata_url: Url | None = Field(
        default=None, description="The https address of a client id metadata document, which is then the client id."
    )
    scopes: list[Line] = Field(default_factory=list, description="The scopes to ask for; by default what it names.")
    redirect_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None,
        description="The port of the registered redirect address on 127.0.0.1. Default: any free port.",
    )

    @model_validator(mode="after")
    def _validate_client(self) -> "OAuthSignIn":
        if self.client_id is not None and self.client_metadata_url is not None:
            raise ValueError("both `client_id` and `client_metadata_url` are set; keep only one of them")
        if self.method != "none" and (self.client_id is None or self.issuer is None):
            missing = "client_id" if self.client_id is None else "issuer"
            raise ValueError(f"a client with a secret needs `{missing}`, so that no other authorization server gets it")
        return self


Auth: TypeAlias = Annotated[BearerAuth | ApiKeyAuth | OAuthClientCredentials | OAuthSignIn, Field(discriminator="type")]

AUTH_MODELS: dict[str, type[BearerAuth | ApiKeyAuth | OAuthClientCredentials | OAuthSignIn]] = {
    get_args(model.model_fields["type"].annotation)[0]: model
    for model in (BearerAuth, ApiKeyAuth, OAuthClientCredentials, OAuthSignIn)
}
"""Model by the value of `type`."""


def without_auth_type(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place as in the file: pydantic inserts the `type` of `auth`."""
    return ("auth", *loc[2:]) if loc[:1] == ("auth",) and len(loc) > 1 and loc[1] in AUTH_MODELS else loc
