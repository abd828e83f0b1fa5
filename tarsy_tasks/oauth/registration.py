"""A client id at an authorization server: of the configuration, a metadata document, or by registering (RFC 7591).

Owns the order in which these are tried. A client that registered itself belongs to one authorization server; at another
one it registers again.
"""

from typing import NamedTuple

from mcp.client.auth.utils import is_valid_client_metadata_url, issuers_match
from mcp.shared.auth import OAuthClientMetadata, TokenEndpointAuthMethod
from pydantic import AnyUrl, BaseModel, SecretStr, ValidationError

from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth.client import Client, ClientMethod
from tarsy_tasks.oauth.discovery import AuthorizationServer
from tarsy_tasks.oauth.endpoint import CredentialsError, Endpoint, Exchange
from tarsy_tasks.oauth.sign_in import SignIn, build_client

__all__ = ["KnownClient", "find_client"]

_METHODS: dict[str, ClientMethod] = {"none": "none", "client_secret_basic": "basic", "client_secret_post": "post"}
_PREFERRED: tuple[TokenEndpointAuthMethod, ...] = ("none", "client_secret_basic", "client_secret_post")
_SHOWN_CHARS = 200


class KnownClient(NamedTuple):
    """A client that the authorization server knows; `is_registered`: it registered itself."""

    client: Client
    is_registered: bool = False


class _Registration(BaseModel):
    """The used part of the answer to a registration."""

    client_id: str
    client_secret: SecretStr | None = None
    token_endpoint_auth_method: str | None = None


async def find_client(
    exchange: Exchange, server: AuthorizationServer, auth: OAuthSignIn, redirect_uri: str, former: SignIn | None
) -> KnownClient:
    """The client with which somebody signs in.

    Args:
        former: The last sign-in to the same server, whose registration may be used again.

    Raises:
        CredentialsError: There is none, and the authorization server registers none.
    """
    if auth.client_id is not None:
        return KnownClient(build_client(auth, auth.client_id))
    document = auth.client_metadata_url
    if document is not None and server.client_id_metadata_document_supported:
        if not is_valid_client_metadata_url(document):
            raise CredentialsError("`client_metadata_url` has to be https, and has to have a path")
        return KnownClient(Client(document))
    is_usable = former is not None and former.is_registered and former.redirect_uri == redirect_uri
    if former is not None and is_usable and issuers_match(former.issuer, server.issuer):
        return KnownClient(former.build_client(auth), is_registered=True)
    if server.registration_endpoint is not None:
        return KnownClient(await _register(exchange, server, redirect_uri), is_registered=True)
    raise Endpoint("the authorization server", server.issuer).error(
        f"registers no clients by itself; register one there with the redirect address {redirect_uri}, and set its "
        "`client_id`" + (" (it takes no client id metadata documents)" if document is not None else "")
    )


async def _register(exchange: Exchange, server: AuthorizationServer, redirect_uri: str) -> Client:
    assert server.registration_endpoint is not None
    offered = server.token_endpoint_auth_methods_supported
    method: TokenEndpointAuthMethod | None = next(
        (each for each in _PREFERRED if offered is None or each in offered), None
    )
    metadata = OAuthClientMetadata(
        redirect_uris=[AnyUrl(redirect_uri)], token_endpoint_auth_method=method, client_name="tarsy-tasks"
    )
    endpoint = Endpoint("the registration endpoint", server.registration_endpoint)
    reply = await exchange.send(endpoint, "POST", json=metadata.model_dump(mode="json", exclude_none=True))
    if reply.status not in (200, 201):
        shown = reply.body.decode("utf-8", "replace")[:_SHOWN_CHARS]
        text = f"answered HTTP {reply.status}: {shown!r}; register a client by hand, and set `client_id`"
        raise endpoint.error(text, is_transient=reply.is_transient)
    try:
        found = _Registration.model_validate_json(reply.body)
    except ValidationError:
        raise endpoint.error("answered without a client id") from None
    has_secret = found.client_secret is not None
    assigned = found.token_endpoint_auth_method or ("client_secret_basic" if has_secret else "none")
    if assigned not in _METHODS or (assigned != "none" and not has_secret):
        raise endpoint.error(f"registered a client that authenticates by {assigned[:_SHOWN_CHARS]!a}, without a secret")
    return Client(found.client_id, _METHODS[assigned], found.client_secret)
