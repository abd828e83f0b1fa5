"""A provider of models on 127.0.0.1: it answers from a script, and refuses what the real ones refuse.

One HTTP server for the APIs of OpenAI, Anthropic and Gemini, so that their own clients make real requests.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", re.ASCII)
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
_COMBINATIONS = {"oneOf", "anyOf", "allOf"}


class Provider:
    """Answers requests with `script`, one after the other, and keeps their bodies in `requests`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.script: list[Body] = []
        self.requests: list[Body] = []

    def answer(self, path: str, body: Body) -> tuple[int, Body]:
        self.requests.append(body)
        refusals = [*_refusals(path, body)]
        if refusals:
            return 400, {"error": {"type": "invalid_request_error", "message": refusals[0], "status": "INVALID"}}
        return 200, self.script.pop(0)


def _refusals(path: str, body: Body) -> Iterator[str]:
    tools: list[Any] = body.get("tools", [])
    if "generateContent" in path:
        for each in (declaration for tool in tools for declaration in tool["functionDeclarations"]):
            yield from _check(each["name"], each.get("parametersJsonSchema", {"type": "object"}))
            yield from _unknown_to_gemini(each.get("parametersJsonSchema", {}))
    elif path.endswith("/messages"):
        for each in tools:
            yield from _check(each["name"], each["input_schema"])
            yield from (name for name in each["input_schema"]["properties"] if not _PROPERTY.fullmatch(name))
    else:
        if len(tools) > 128:
            yield f"array too long: {len(tools)}"
        for each in (tool.get("function", tool) for tool in tools):
            yield from _check(each["name"], each["parameters"])
            if len(each["description"]) > 1024:
                yield f"string too long: {len(each['description'])}"
            if "properties" not in each["parameters"]:
                yield f"object schema missing properties: {each['name']}"
            if {"enum", "not"} & each["parameters"].keys() or '{"type": "array"}' in json.dumps(each["parameters"]):
                yield f"invalid schema: {each['name']}"


def _check(name: str, schema: Body) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"name: {name}"
    if schema.get("type") != "object" or _COMBINATIONS & schema.keys() or "$ref" in schema:
        yield f"schema must have type 'object' and no combination at the top level: {name}"


def _unknown_to_gemini(schema: Any) -> Iterator[str]:
    text = json.dumps(schema)
    yield from (f"unknown name {word}" for word in ("const", "$schema", "allOf", "title") if f'"{word}":' in text)


@contextmanager
def provider_on_loopback() -> Iterator[Provider]:
    """A provider, from the moment it listens."""

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = provider.answer(self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = Provider(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
