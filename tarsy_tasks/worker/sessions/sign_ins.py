"""What the sessions of a worker need to read the sign-ins of persons: the key, and Redis."""

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.oauth.sealed import Sealer
from tarsy_tasks.settings import Settings
from tarsy_tasks.worker.maskers import known_secrets
from tarsy_tasks.worker.transport.signed_in import SignInTokens

__all__ = ["build_sign_ins"]


def build_sign_ins(settings: Settings, exchange: AsyncRedisExchange) -> SignInTokens:
    """The sign-ins of a deployment; without a key none can be read.

    Raises:
        ConfigError: There is a key, but nothing installed that decrypts.
    """
    if settings.token_key is None:
        return SignInTokens(exchange, None)
    known_secrets.add(settings.token_key.get_secret_value().split())
    return SignInTokens(exchange, Sealer(settings.token_keys))
