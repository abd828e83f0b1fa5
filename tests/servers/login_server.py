"""An authorization server and the MCP servers that trust it, as strict as the standards: what it gives has to be
presented as it was given.

It runs in threads of the test and writes down every request. Paths: `/mcp/NAME` are MCP servers, `/authorize`,
`/token`, `/register`, `/revoke` and the metadata the authorization server, whose only user approves everything at once.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import jwt

from tests.servers.guarded import Request
from tests.servers.plain_http import JSON, PlainHandler, PlainServer, serving

__all__ = ["LoginServer", "login_server"]

TOOL = {"name": "whoami", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}


class LoginServer(PlainServer):
    """One server on its own port.

    Attributes:
        token_s: The lifetime that it claims; None: it does not say.
        code_s: That of what it gives for a code, if it is another one.
        metadata: What replaces its own metadata, by key; None removes a key.
        resource_metadata: The same of those of the MCP servers.
        iss: What it says in its answers in place of its issuer; None: nothing.
        clients: Secret, or public key, by id; those that registered are added.
        access: The scopes of each valid access token.
        refresh: The scopes of each refresh token; each is valid once.
        needed: The scope that calls need.
        broken: What the token endpoint does with a grant in place of its work: a status, `hang`, or `redirect`; or
            `held`, until it is released.
        renewals: How many refresh tokens were redeemed.
        reused: Refresh tokens that were presented a second time.
        requests: All that came.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.token_s: Any = 3600
        self.code_s: int | None = None
        self.metadata: dict[str, Any] = {}
        self.resource_metadata: dict[str, Any] = {}
        self.iss: str | None = self.url
        self.clients: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.access: dict[str, set[str]] = {}
        self.refresh: dict[str, set[str]] = {}
        self.needed = ""
        self.broken: dict[str, int | str] = {}
        self.renewals = 0
        self.reused: list[str] = []
        self.requests: list[Request] = []
        self.released = threading.Event()
        self.lock = threading.Lock()

    def forms(self, path: str) -> list[dict[str, str]]:
        """What was sent to an endpoint."""
        found = [each for each in self.requests if each.method == "POST" and each.path == path]
        return [{key: values[0] for key, values in parse_qs(each.body).items()} for each in found]

    def give(self, scope: str, grant: str = "") -> dict[str, Any]:
        access, refresh = (f"{kind}-{secrets.token_urlsafe(24)}" for kind in ("access", "refresh"))
        self.access[access] = self.refresh[refresh] = set(scope.split())
        given = {"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "scope": scope}
        claimed_s = self.code_s if self.code_s and grant == "authorization_code" else self.token_s
        return given if claimed_s is None else {**given, "expires_in": claimed_s}


class Handler(PlainHandler):
    """Answers by path."""

    server: LoginServer

    def do_POST(self) -> None:
        body = self.read_body().decode()
        self.record(body)
        form = {key: values[0] for key, values in parse_qs(body).items()}
        path = urlsplit(self.path).path
        if path.startswith("/mcp/"):
            self.serve(json.loads(body))
        elif path == "/register":
            self.register_client(json.loads(body))
        elif path == "/token":
            self.give_tokens(form)
        elif path == "/revoke" and self.authenticate(form):
            self.server.access.pop(form["token"], None)
            self.server.refresh.pop(form["token"], None)
            self.reply(200)
        else:
            self.reply(404)

    def do_GET(self) -> None:
        self.record("")
        url = urlsplit(self.path)
        own, last = self.server.url, url.path.rpartition("/")[2]
        if url.path.startswith("/.well-known/oauth-protected-resource/mcp/"):
            known = {"resource": f"{own}/mcp/{last}", "authorization_servers": [own], "scopes_supported": ["read"]}
            self.tell(known, self.server.resource_metadata)
        elif url.path == "/.well-known/oauth-authorization-server":
            self.tell(
                {
                    "issuer": own,
                    **{f"{name}_endpoint": f"{own}/{path}" for name, path in ENDPOINTS.items()},
                    "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
                    "authorization_response_iss_parameter_supported": self.server.iss is not None,
                },
                self.server.metadata,
            )
        elif url.path == "/authorize":
            self.approve({key: values[0] for key, values in parse_qs(url.query).items()})
        else:
            self.reply(405)

    def do_DELETE(self) -> None:
        self.reply(200)

    def record(self, body: str) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append(Request(self.command, self.path, headers, body))

    def tell(self, known: dict[str, Any], changes: dict[str, Any]) -> None:
        found = {key: value for key, value in (known | changes).items() if value is not None}
        self.reply(200, json.dumps(found).encode(), JSON)

    def refuse(self, error: str, status: int = 400) -> None:
        self.reply(status, json.dumps({"error": error, "error_description": "so it is"}).encode(), JSON)

    # The MCP server.

    def serve(self, request: dict[str, Any]) -> None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        scopes, needed = self.server.access.get(token), self.server.needed
        where = f"{self.server.url}/.well-known/oauth-protected-resource{self.path}"
        if scopes is None:
            self.reply(401, b"", {"WWW-Authenticate": f'Bearer resource_metadata="{where}"'})
        elif needed and needed not in scopes and request["method"] == "tools/call":
            challenge = f'Bearer error="insufficient_scope", scope="{needed}", resource_metadata="{where}"'
            self.reply(403, b"", {"WWW-Authenticate": challenge})
        elif "id" not in request:
            self.reply(202)
        else:
            known: dict[str, dict[str, Any]] = {
                "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
                "tools/list": {"tools": [TOOL], "ttlMs": 0, "cacheScope": "private"},
                "tools/call": {"content": [{"type": "text", "text": f"somebody who may {' '.join(sorted(scopes))}"}]},
            }
            result = known.get(request["method"], {})
            self.reply_json({"id": request["id"], "result": {"resultType": "complete", **result}})

    # The authorization server.

    def register_client(self, wanted: dict[str, Any]) -> None:
        client_id, secret = f"client-{len(self.server.clients)}", None
        if wanted["token_endpoint_auth_method"] != "none":
            secret = secrets.token_urlsafe(24)
        self.server.clients[client_id] = secret
        found = {**wanted, "client_id": client_id} | ({"client_secret": secret} if secret else {})
        self.reply(201, json.dumps(found).encode(), JSON)

    def approve(self, asked: dict[str, str]) -> None:
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{secrets.token_urlsafe(12)}"
        self.server.codes[code] = asked
        answer = {"code": code, "state": asked["state"]} | ({"iss": self.server.iss} if self.server.iss else {})
        self.reply(302, b"", {"Location": f"{asked['redirect_uri']}?{urlencode(answer)}"})

    def authenticate(self, form: dict[str, str]) -> bool:
        """Whether the client is who it says, by the method that it has."""
        client_id, given = form.get("client_id", ""), form.get("client_secret")
        if (header := self.headers.get("Authorization", "")).startswith("Basic "):
            client_id, given = map(unquote, base64.b64decode(header[6:]).decode().split(":"))
        if client_id not in self.server.clients and not client_id.startswith("https://"):
            return False
        known = self.server.clients.get(client_id)
        if known is None or isinstance(known, str):
            return given == known
        claims = jwt.decode(form["client_assertion"], known, ["ES256", "RS256"], audience=self.server.url)
        assert claims["exp"] - time.time() < 300
        return claims["iss"] == claims["sub"] == client_id

    def give_tokens(self, form: dict[str, str]) -> None:
        match self.server.broken.get(form["grant_type"]):
            case "hang":
                self.server.released.wait(30)
                self.close_connection = True
                return
            case "held":
                self.server.released.wait(30)
            case "redirect":
                self.reply(307, b"", {"Location": "http://127.0.0.1:1/token"})
                return
            case int(status):
                self.reply(status)
                return
            case _:
                pass
        if not self.authenticate(form):
            self.refuse("invalid_client", 401)
            return
        with self.server.lock:
            granted = getattr(self, f"_{form['grant_type']}")(form)
        if granted is None:
            self.refuse("invalid_grant")
        else:
            self.reply(200, json.dumps(self.server.give(granted, form["grant_type"])).encode(), JSON)

    def _authorization_code(self, form: dict[str, str]) -> str | None:
        asked = self.server.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        same = asked and all(asked[name] == form[name] for name in ("redirect_uri", "resource"))
        return asked.get("scope", "") if asked and same and asked["code_challenge"] == challenge else None

    def _refresh_token(self, form: dict[str, str]) -> str | None:
        scopes = self.server.refresh.pop(form["refresh_token"], None)
        if scopes is None:
            self.server.reused.append(form["refresh_token"])
            return None
        self.server.renewals += 1
        return " ".join(sorted(scopes))

    def _client_credentials(self, form: dict[str, str]) -> str:
        return form.get("scope", "")


ENDPOINTS = {"authorization": "authorize", "token": "token", "registration": "register", "revocation": "revoke"}


@contextmanager
def login_server() -> Iterator[LoginServer]:
    with serving(LoginServer()) as server:
        try:
            yield server
        finally:
            server.released.set()
