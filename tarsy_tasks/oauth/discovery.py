"""Which authorization server an MCP server trusts, and where its endpoints are.

Owns what is believed of both: the metadata of a resource (RFC 9728) must be about that server, those of an
authorization server (RFC 8414, OpenID) must name the issuer that was asked for, and no secret goes to an address that
is not encrypted.
"""

from importlib.metadata import version
from typing import NamedTuple

import httpx2
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    issuers_match,
)
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LATEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION_META_KEY,
)
from pydantic import BaseModel, Field, ValidationError

from tarsy_tasks.oauth.endpoint import CredentialsError, Endpoint, Exchange, is_safe, shown_address

__all__ = ["AuthorizationServer", "Resource", "ask_server", "load_authorization_server"]

_META = {
    PROTOCOL_VERSION_META_KEY: LATEST_PROTOCOL_VERSION,
    CLIENT_INFO_META_KEY: {"name": "tarsy-tasks", "version": version("tarsy-tasks")},
    CLIENT_CAPABILITIES_META_KEY: {},
}
_PROBE = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": _META}}
_PROBE_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": LATEST_PROTOCOL_VERSION,
    "Mcp-Method": "server/discover",
}
_REFUSED = (401, 403)


class AuthorizationServer(BaseModel):
    """The used part of an authorization server's metadata (RFC 8414, RFC 9207)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class _ResourceMetadata(BaseModel):
    """The used part of a resource's metadata (RFC 9728)."""

    resource: str
    authorization_servers: list[str] = Field(min_length=1)
    scopes_supported: list[str] | None = None


class Resource(NamedTuple):
    """What an MCP server says of its authorization.

    Attributes:
        url: What tokens are asked for (RFC 8707); empty if it says nothing, as before 2025-06-18.
        issuers: The authorization servers that it trusts.
        scopes: What it asks for; None: anything.
    """

    url: str
    issuers: list[str]
    scopes: list[str] | None = None


async def ask_server(exchange: Exchange, server_url: str) -> Resource:
    """Send a server a request without credentials, and read what follows from its refusal.

    Raises:
        CredentialsError: The metadata are about another server, or their address is not safe.
    """
    server = Endpoint("the MCP server", server_url)
    reply = await exchange.send(server, "POST", json=_PROBE, headers=_PROBE_HEADERS)
    refusal = httpx2.Response(reply.status, headers=reply.headers)
    is_refusal = reply.status in _REFUSED
    named = extract_resource_metadata_from_www_auth(refusal) if is_refusal else None
    scope = extract_scope_from_www_auth(refusal) if is_refusal else None
    is_plain = server_url.startswith("http://")
    if named is not None and not is_safe(named, plain=is_plain):
        raise server.error(f"names {shown_address(named)} for its metadata, which is not encrypted")
    for url in build_protected_resource_metadata_discovery_urls(named, server_url):
        found = await _load_resource(exchange, url)
        if found is None:
            continue
        if not check_resource_allowed(resource_url_from_server_url(server_url), found.resource):
            text = f"describes {shown_address(found.resource)}, not {shown_address(server_url)}; correct `url`"
            raise Endpoint("the metadata of the MCP server at", url).error(text)
        asked = scope.split() if scope else found.scopes_supported
        return Resource(found.resource, found.authorization_servers, asked)
    # As before 2025-06-18: the authorization server has the origin of the MCP server.
    origin = str(httpx2.URL(server_url).copy_with(userinfo=b"", path="/", query=None, fragment=None))
    return Resource("", [origin.rstrip("/")], scope.split() if scope else None)


async def _load_resource(exchange: Exchange, url: str) -> _ResourceMetadata | None:
    reply = await exchange.get(Endpoint("the metadata of the MCP server at", url))
    if reply.status != 200:
        return None
    try:
        return _ResourceMetadata.model_validate_json(reply.body)
    except ValidationError:
        return None


async def load_authorization_server(exchange: Exchange, issuer: str) -> AuthorizationServer:
    """The metadata of an authorization server.

    Raises:
        CredentialsError: There are none, they are of another issuer, or an address in them is not safe.
    """
    server = Endpoint("the authorization server", issuer)
    if not is_safe(issuer):
        raise server.error("is not encrypted, so its answer could be changed to get what is sent; use https")
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, ""):
        found = Endpoint("the authorization server's metadata at", url)
        reply = await exchange.get(found)
        if reply.status != 200:
            continue
        try:
            metadata = AuthorizationServer.model_validate_json(reply.body)
        except ValidationError:
            continue
        if not issuers_match(metadata.issuer, issuer):
            raise found.error("are those of another issuer; write `issuer` exactly as the authorization server does")
        _check_addresses(found, metadata, plain=not issuer.startswith("https://"))
        return metadata
    raise server.error("publishes no metadata with a token endpoint")


def _check_addresses(found: Endpoint, metadata: AuthorizationServer, *, plain: bool) -> None:
    for name in ("token_endpoint", "authorization_endpoint", "registration_endpoint", "revocation_endpoint"):
        address = getattr(metadata, name)
        if address is not None and not is_safe(address, plain=plain):
            what = name.replace("_", " ")
            raise CredentialsError(f"{found.error(f'have an unencrypted {what}').text}; nothing is sent there")
