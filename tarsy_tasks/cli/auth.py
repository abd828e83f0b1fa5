"""`tarsy-tasks auth`: sign in to MCP servers with OAuth, for the workers; see who has, and sign out."""

import asyncio
import os
import webbrowser
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import click

import tarsy_tasks
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.cli import FAILED, UNAVAILABLE
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import json_option, local_time, notes, print_json, print_table
from tarsy_tasks.cli.redirect import RedirectPage, find_free_port
from tarsy_tasks.config import OAuthSignIn, ServerConfig, resolve_variables
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.oauth import store
from tarsy_tasks.oauth.authorization import Authorization, begin_authorization, complete_authorization
from tarsy_tasks.oauth.endpoint import CredentialsError, Exchange
from tarsy_tasks.oauth.revocation import revoke
from tarsy_tasks.oauth.sealed import Sealer, SealError
from tarsy_tasks.oauth.sign_in import SignIn
from tarsy_tasks.oauth.store import Found
from tarsy_tasks.settings import load_settings
from tarsy_tasks.worker.maskers import build_value_masker, known_secrets

__all__ = ["auth"]

T = TypeVar("T")

_EXPIRED = "its access token has expired, and cannot be renewed"


class _Target(NamedTuple):
    """A server that people sign in to."""

    name: str
    url: str
    auth: OAuthSignIn
    ca_file: str | None


@click.group()
def auth() -> None:
    """Sign in to MCP servers that use OAuth, for all workers."""


@auth.command()
@click.argument("server")
@click.option("--scope", "scopes", multiple=True, help="A scope to be granted in addition; may be repeated.")
@click.option("--no-browser", is_flag=True, help="Sign in with a browser elsewhere, and paste the address back.")
@click.option(
    "--timeout", "timeout_s", default=300.0, show_default=True, type=click.FloatRange(1), help="Seconds to wait."
)
def login(server: str, scopes: tuple[str, ...], timeout_s: float, *, no_browser: bool) -> None:
    """Sign in to SERVER. Its workers use and renew the tokens, which are kept encrypted in Redis.

    Exit codes: 1 the sign-in was refused, 3 Redis, the server or its authorization server is unavailable.
    """
    target, sealer = _find_target(server), _build_sealer()
    with broker() as redis:
        exchange = RedisExchange(redis.connection_pool)
        found = _read_former(exchange, sealer, target)
        sign_in = _run(_sign_in(target, found, scopes, timeout_s, no_browser=no_browser))
        now = store.time_of(exchange.execute(("TIME",))[0])
        known_secrets.add(sign_in.secrets)
        exchange.execute(store.build_write(server, store.seal(sealer, server, sign_in.at(now))))
    what = f" with {' '.join(sign_in.scopes)}" if sign_in.scopes else ""
    notes.print(f"Signed in to {server} at {sign_in.issuer}{what}. Workers use it within 5 s.")
    if sign_in.refresh_token is None and sign_in.expires_at is not None:
        notes.print("Its authorization server gave no refresh token, so this ends when the access token expires.")


@auth.command()
@click.argument("server", required=False)
@json_option
def status(server: str | None, *, as_json: bool) -> None:
    """Show who has signed in where. Exit code 1 when somebody has to sign in."""
    names = [server] if server is not None else [name for name, each in _servers().items() if _signs_in(each)]
    settings = load_settings()
    sealer = Sealer(settings.token_keys) if settings.token_key is not None else None
    with broker() as redis:
        exchange = RedisExchange(redis.connection_pool)
        rows = [_describe(_find_target(name), exchange, sealer) for name in names]
    if as_json:
        print_json(rows)
    else:
        columns = ("server", "status", "signed in at", "access token until", "scopes", "authorization server")
        print_table(columns, [_as_row(row) for row in rows], nothing="no server has `auth` of the type oauth")
    if any(row["status"] != "signed in" for row in rows):
        raise click.exceptions.Exit(FAILED)


@auth.command()
@click.argument("server")
def logout(server: str) -> None:
    """Sign out of SERVER: revoke the tokens, where that is possible, and delete them. Workers stop using them within
    5 s."""
    target, settings = _find_target(server), load_settings()
    with broker() as redis:
        exchange = RedisExchange(redis.connection_pool)
        found = None
        if settings.token_key is not None:
            found = _read_former(exchange, Sealer(settings.token_keys), target)
        was_there = exchange.execute(store.build_delete(server))[0]
    if not was_there:
        notes.print(f"Nobody had signed in to {server}.")
        return
    why = "" if found is not None else "they cannot be read"
    if found is not None:
        try:
            why = "" if asyncio.run(_revoke(target, found.sign_in)) else "its authorization server revokes none"
        except CredentialsError as error:
            why = build_value_masker().mask(error.text)
    notes.print(f"Signed out of {server}." + (f" The tokens were not revoked: {why}." if why else ""))


async def _sign_in(
    target: _Target, found: Found | None, scopes: tuple[str, ...], timeout_s: float, *, no_browser: bool
) -> SignIn:
    former = None if found is None else found.sign_in
    port = target.auth.redirect_port or _former_port(former)
    if no_browser:
        authorization = await _begin(target, former, scopes, RedirectPage.address_at(port or find_free_port()))
        address = await asyncio.to_thread(_ask_for_address, authorization)
    else:
        async with await _open_page(port, is_fixed=target.auth.redirect_port is not None) as page:
            authorization = await _begin(target, former, scopes, page.address)
            page.is_answer = authorization.is_answer
            notes.print(f"Sign in with the browser that opens, or open this address in one:\n\n{authorization.url}\n")
            await asyncio.to_thread(webbrowser.open, authorization.url)
            try:
                address = await page.wait(timeout_s)
            except TimeoutError:
                text = f"nobody has signed in within {timeout_s:g} s; try again, or with --no-browser from elsewhere"
                raise CredentialsError(text) from None
    async with Exchange(target.ca_file) as exchange:
        return await complete_authorization(exchange, authorization, address)


async def _begin(target: _Target, former: SignIn | None, scopes: tuple[str, ...], address: str) -> Authorization:
    async with Exchange(target.ca_file) as exchange:
        return await begin_authorization(exchange, target.url, target.auth, address, former, scopes)


async def _open_page(port: int, *, is_fixed: bool) -> RedirectPage:
    """The page at a port, or, if that is taken and need not be the one, at any."""
    page = RedirectPage(port)
    try:
        await page.open()
    except OSError as error:
        if is_fixed:
            raise CredentialsError(f"`redirect_port` {port} cannot be used: {error.strerror}") from None
        page = RedirectPage(0)
        await page.open()
    return page


def _former_port(former: SignIn | None) -> int:
    """A client that registered itself can be used again with the address that it registered."""
    if former is None or not former.is_registered:
        return 0
    return int(former.redirect_uri.rpartition(":")[2].partition("/")[0])


def _ask_for_address(authorization: Authorization) -> str:
    notes.print(
        f"Open this address in a browser and sign in:\n\n{authorization.url}\n\nThe browser then shows a page that "
        f"cannot be reached, {authorization.redirect_uri}?… Copy its whole address from the address bar."
    )
    return click.prompt("Address", err=True)


async def _revoke(target: _Target, sign_in: SignIn) -> bool:
    async with Exchange(target.ca_file) as exchange:
        return await revoke(exchange, sign_in, target.auth)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it; its errors become exit codes."""
    try:
        return asyncio.run(work)
    except CredentialsError as error:
        notes.print(f"tarsy-tasks: {build_value_masker().mask(error.text)}.")
        raise click.exceptions.Exit(UNAVAILABLE if error.is_transient else FAILED) from None


def _servers() -> dict[str, ServerConfig]:
    return tarsy_tasks.app.mcp_config.servers


def _signs_in(server: ServerConfig) -> bool:
    return isinstance(server.auth, OAuthSignIn)


def _find_target(name: str) -> _Target:
    server = _servers().get(name)
    if server is None:
        raise ConfigError(f"there is no MCP server {name} in the configuration")
    if not _signs_in(server):
        raise ConfigError(f'{name} has no sign-in: its `auth` is not {{"type": "oauth"}}')
    resolved = resolve_variables(server, os.environ)
    known_secrets.add(resolved.secrets)
    assert resolved.url is not None
    assert isinstance(resolved.auth, OAuthSignIn)
    return _Target(name, resolved.url.get_secret_value(), resolved.auth, resolved.ca_file)


def _build_sealer() -> Sealer:
    settings = load_settings()
    if settings.token_key is None:
        raise ConfigError(
            "TARSY_TOKEN_KEY is not set: tokens are kept encrypted; generate a key with `openssl rand -base64 32`, and "
            "set it here and where the workers run"
        )
    return Sealer(settings.token_keys)


def _read_former(exchange: RedisExchange, sealer: Sealer, target: _Target) -> Found | None:
    try:
        found = store.read_found(sealer, target.name, exchange.execute(*store.build_read(target.name)))
    except SealError:
        return None
    if found is not None:
        known_secrets.add(found.sign_in.secrets)
    return found


def _describe(target: _Target, exchange: RedisExchange, sealer: Sealer | None) -> dict[str, Any]:
    replies, row = exchange.execute(*store.build_read(target.name)), {"server": target.name}
    if replies[0] is None:
        return {**row, "status": "not signed in"}
    if sealer is None:
        return {**row, "status": "not readable: TARSY_TOKEN_KEY is not set"}
    try:
        found = store.read_found(sealer, target.name, replies)
    except SealError as error:
        return {**row, "status": f"not readable: it {error}"}
    assert found is not None
    sign_in = found.sign_in
    expires_at = sign_in.expires_at
    is_over = sign_in.refresh_token is None and expires_at is not None and expires_at <= found.now
    why = sign_in.find_conflict(target.url, target.auth) or sign_in.ended or (is_over and _EXPIRED)
    return {
        **row,
        "status": f"sign in again: {why}" if why else "signed in",
        "signed_in_at": local_time(sign_in.signed_in_at, "T"),
        "expires_at": None if expires_at is None else local_time(expires_at, "T"),
        "is_renewed": sign_in.refresh_token is not None,
        "scopes": sign_in.scopes,
        "issuer": sign_in.issuer,
        "client_id": sign_in.client_id,
    }


def _as_row(row: dict[str, Any]) -> tuple[str, ...]:
    until = row.get("expires_at") or ("" if "issuer" not in row else "unknown")
    return (
        row["server"],
        row["status"],
        row.get("signed_in_at", ""),
        f"{until}, then renewed" if row.get("is_renewed") else until,
        " ".join(row.get("scopes", ())),
        row.get("issuer", ""),
    )
