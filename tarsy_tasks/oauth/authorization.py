"""The authorization code flow with PKCE: from a server's refusal to the tokens of the person who signs in.

Owns what is asked for, and what of the answer is believed: it must belong to this request, and come from the
authorization server that was asked (RFC 9207). How a person gets to that server and back is for the caller.
"""

import math
import secrets
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import uuid4

from mcp.client.auth.oauth2 import PKCEParameters
from mcp.client.auth.utils import issuers_match

from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth.client import Client
from tarsy_tasks.oauth.discovery import AuthorizationServer, Resource, ask_server, load_authorization_server
from tarsy_tasks.oauth.endpoint import CredentialsError, Endpoint, Exchange, is_safe
from tarsy_tasks.oauth.registration import find_client
from tarsy_tasks.oauth.sign_in import SignIn, server_address
from tarsy_tasks.oauth.token_answer import request_tokens

__all__ = ["Authorization", "begin_authorization", "complete_authorization"]

_SHOWN_CHARS = 200
_OFFLINE = "offline_access"
"""The scope of OpenID for refresh tokens."""


class Authorization(NamedTuple):
    """A request that a person is to approve.

    Attributes:
        url: Where they do.
        redirect_uri: Where their browser is sent afterwards.
        scopes: What was asked for.
    """

    url: str
    redirect_uri: str
    scopes: list[str]
    server_url: str
    resource: str
    server: AuthorizationServer
    client: Client
    is_registered: bool
    state: str
    verifier: str

    def is_answer(self, address: str) -> bool:
        """Whether an address is an answer to this request: anybody can send a browser to the redirect address."""
        return secrets.compare_digest(_parameter(address, "state").encode(), self.state.encode())


async def begin_authorization(
    exchange: Exchange,
    server_url: str,
    auth: OAuthSignIn,
    redirect_uri: str,
    former: SignIn | None = None,
    more_scopes: Iterable[str] = (),
) -> Authorization:
    """Find out where somebody signs in, and build the request.

    Args:
        former: The last sign-in to the same server.
        more_scopes: To be granted in addition to what was granted before.

    Raises:
        CredentialsError: That is not possible.
    """
    if auth.issuer is None and not is_safe(server_url):
        text = "is not encrypted, so anyone could name another authorization server; use https, or set `issuer`"
        raise Endpoint("the MCP server", server_url).error(text)
    resource = await ask_server(exchange, server_url)
    server = await load_authorization_server(exchange, _choose_issuer(server_url, resource, auth))
    named = Endpoint("the authorization server", server.issuer)
    if server.authorization_endpoint is None:
        raise named.error("has no authorization endpoint, so there is no sign-in")
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise named.error("does not support PKCE with S256, which MCP requires")
    client, is_registered = await find_client(exchange, server, auth, redirect_uri, former)
    scopes = _choose_scopes(auth, resource, server, former, more_scopes)
    pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
    }
    query |= {"resource": resource.url} if resource.url else {}
    query |= {"scope": " ".join(scopes)} if scopes else {}
    query |= {"prompt": "consent"} if _OFFLINE in scopes else {}  # OpenID requires it
    separator = "&" if urlsplit(server.authorization_endpoint).query else "?"
    return Authorization(
        url=f"{server.authorization_endpoint}{separator}{urlencode(query)}",
        redirect_uri=redirect_uri,
        scopes=scopes,
        server_url=server_address(server_url),
        resource=resource.url,
        server=server,
        client=client,
        is_registered=is_registered,
        state=state,
        verifier=pkce.code_verifier,
    )


def _choose_issuer(server_url: str, resource: Resource, auth: OAuthSignIn) -> str:
    if auth.issuer is None:
        return resource.issuers[0]
    if resource.url and not any(issuers_match(each, auth.issuer) for each in resource.issuers):
        text = f"trusts {resource.issuers[0][:_SHOWN_CHARS]!a}, not the `issuer` of its `auth`; correct that"
        raise Endpoint("the MCP server", server_url).error(text)
    return auth.issuer


def _choose_scopes(
    auth: OAuthSignIn, resource: Resource, server: AuthorizationServer, former: SignIn | None, more: Iterable[str]
) -> list[str]:
    added = list(more)
    scopes = [*(auth.scopes or resource.scopes or ()), *(former.scopes if added and former is not None else ()), *added]
    if scopes and _OFFLINE in (server.scopes_supported or ()):
        scopes.append(_OFFLINE)
    return list(dict.fromkeys(scopes))


async def complete_authorization(exchange: Exchange, authorization: Authorization, address: str) -> SignIn:
    """Redeem what came back.

    Args:
        address: Where the browser was sent, with its query.

    Returns:
        The sign-in, whose times begin with 0 (`SignIn.at`).

    Raises:
        CredentialsError: The answer is not one to this request, or there are no tokens.
    """
    server, client = authorization.server, authorization.client
    code = _read_answer(authorization, address)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": authorization.redirect_uri,
        "code_verifier": authorization.verifier,
    }
    form |= {"resource": authorization.resource} if authorization.resource else {}
    endpoint = Endpoint("the token endpoint", server.token_endpoint)
    answer = await request_tokens(exchange, endpoint, form, client, server.issuer, (code, authorization.verifier))
    return SignIn(
        id=uuid4().hex,
        server_url=authorization.server_url,
        resource=authorization.resource,
        issuer=server.issuer,
        token_endpoint=server.token_endpoint,
        revocation_endpoint=server.revocation_endpoint,
        client_id=client.client_id,
        client_method=client.method,
        client_secret=client.secret if authorization.is_registered else None,
        redirect_uri=authorization.redirect_uri,
        is_registered=authorization.is_registered,
        access_token=answer.access_token,
        refresh_token=answer.refresh_token,
        scopes=authorization.scopes if answer.scope is None else answer.scope.split(),
        signed_in_at=0.0,
        obtained_at=0.0,
        expires_at=None if math.isinf(answer.life_s) else answer.life_s,
    )


def _read_answer(authorization: Authorization, address: str) -> str:
    """The code in an answer."""
    if not authorization.is_answer(address):
        raise CredentialsError(
            "this is not the answer to this sign-in: paste the whole address, from the browser in which you have just "
            "approved it"
        )
    server, issuer = authorization.server, _parameter(address, "iss")
    named = Endpoint("the authorization server", server.issuer)
    if issuer and issuer != server.issuer:
        raise CredentialsError(f"the answer is of another authorization server, {issuer[:_SHOWN_CHARS]!a}; not used")
    if not issuer and server.authorization_response_iss_parameter_supported:
        raise CredentialsError("the answer does not say which authorization server it is of (`iss`), as it should")
    if error := _parameter(address, "error"):
        reason = f"{error}: {_parameter(address, 'error_description')}".removesuffix(": ")
        raise named.error(f"refused the sign-in ({reason[:_SHOWN_CHARS]})")
    if not (code := _parameter(address, "code")):
        raise named.error("sent no code; sign in again")
    return code


def _parameter(address: str, name: str) -> str:
    """A parameter that an address has once; else empty."""
    try:
        found = parse_qs(urlsplit(address.strip()).query).get(name, [])
    except ValueError:
        return ""
    return found[0] if len(found) == 1 else ""
