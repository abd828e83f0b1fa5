"""The end of a sign-in at its authorization server (RFC 7009)."""

from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth.endpoint import Endpoint, Exchange
from tarsy_tasks.oauth.sign_in import SignIn

__all__ = ["revoke"]


async def revoke(exchange: Exchange, sign_in: SignIn, auth: OAuthSignIn) -> bool:
    """Revoke the tokens of a sign-in; false if the authorization server has no such endpoint.

    Raises:
        CredentialsError: They may still be valid.
    """
    if sign_in.revocation_endpoint is None:
        return False
    endpoint = Endpoint("the revocation endpoint", sign_in.revocation_endpoint)
    client = sign_in.build_client(auth)
    tokens = {"refresh_token": sign_in.refresh_token, "access_token": sign_in.access_token}
    for kind, token in tokens.items():
        if token is None:
            continue
        form = {"token": token.get_secret_value(), "token_type_hint": kind}
        data, headers = client.authenticate(form, sign_in.issuer)
        reply = await exchange.send(endpoint, "POST", data=data, headers=headers)
        if reply.status != 200:
            raise endpoint.error(f"answered HTTP {reply.status}", is_transient=reply.is_transient)
    return True
