"""An MCP server that asks for input, in either era.

`python curious.py LEDGER [--handshake] [--http PORT]`. A line of the ledger is `run TOOL KEY`, written when a tool has
done its work. `order` and `look` ask the same in both eras; what is named `old` asks in the handshake era only,
and all else in the 2026 era only.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

from tests.servers.either_era import build_parser, serve

SECRET_STATE = "state-of-the-server-alone"
READ_ONLY = ToolAnnotations(read_only_hint=True)


EVERYTHING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Full name", "minLength": 2, "description": "As in your passport."},
        "weight": {"type": "number", "minimum": 1},
        "email": {"type": "string", "format": "email"},
        "member": {"type": "boolean", "default": True},
        "size": {"type": "string", "enum": ["s", "m"], "enumNames": ["small", "medium"]},
        "color": {"oneOf": [{"const": "#f00", "title": "Red"}, {"const": "#0f0", "title": "Green"}]},
        "days": {"type": "array", "items": {"type": "string", "enum": ["sat", "sun"]}, "minItems": 1},
    },
    "required": ["name"],
}


class Size(BaseModel):
    size: int = Field(ge=1, le=10)
    color: str = "red"


class Year(BaseModel):
    year: int


def form(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def content_of(context: Context, key: str) -> dict[str, Any] | None:
    """What a question was answered; None before, and if it was not accepted."""
    answer: Any = (context.input_responses or {}).get(key)
    return None if answer is None else {"action": answer.action, **(answer.content or {})}


def build(ledger: Path) -> MCPServer:
    server = MCPServer("curious")

    def record(tool: str, key: str) -> None:
        with ledger.open("a") as file:
            file.write(f"run {tool} {key}\n")

    async def ask_size(key: str) -> Elicit[Size]:
        return Elicit(f"Which size for {key}?", Size)

    @server.tool()
    async def order(key: str, size: Annotated[ElicitationResult[Size], Resolve(ask_size)]) -> str:
        """Order something."""
        record("order", key)
        return f"{key}: {size.data.size} {size.data.color}" if size.action == "accept" else f"{key}: {size.action}"

    @server.tool(annotations=READ_ONLY)
    async def look(key: str, size: Annotated[Size, Resolve(ask_size)]) -> str:
        """As `order`, and harmless to repeat."""
        record("look", key)
        return f"{key}: {size.size}"

    @server.tool()
    async def survey(key: str, context: Context) -> str | InputRequiredResult:
        """Ask two things at once, and one more."""
        if context.request_state is None:
            asked = {"name": form("Your name?", name={"type": "string"}), "age": form("Age?", age={"type": "integer"})}
            return InputRequiredResult(input_requests=asked, request_state=f"{SECRET_STATE} 1")
        if context.request_state == f"{SECRET_STATE} 1":
            name, age = content_of(context, "name"), content_of(context, "age")
            asked = {"sure": form(f"Sure? {name} {age}", sure={"type": "boolean"})}
            return InputRequiredResult(input_requests=asked, request_state=f"{SECRET_STATE} 2 {name}")
        record("survey", key)
        return f"{context.request_state.removeprefix(SECRET_STATE)} {content_of(context, 'sure')}"

    @server.tool()
    async def pester(context: Context) -> str | InputRequiredResult:
        """Ask for ever."""
        number = int(context.request_state or 0)
        return InputRequiredResult(
            input_requests={"again": form(f"Number {number}?", n={"type": "integer"})}, request_state=str(number + 1)
        )

    @server.tool()
    async def steps(count: int, context: Context) -> str | InputRequiredResult:
        """Only give a state, so many times."""
        number = int(context.request_state or 0)
        return "done" if number >= count else InputRequiredResult(request_state=str(number + 1))

    @server.tool()
    async def visit(context: Context) -> str | InputRequiredResult:
        """Have somebody visit a page."""
        if (answer := content_of(context, "page")) is not None:
            return str(answer["action"])
        page = ElicitRequestURLParams(message="Sign in.", url="https://bank.example.com/sign-in?for=you")
        return InputRequiredResult(input_requests={"page": ElicitRequest(params=page)})

    @server.tool()
    async def visit_old(context: Context) -> str:
        """The same in the handshake era."""
        return (await context.elicit_url("Sign in.", "https://bank.example.com/sign-in", "e1")).action

    @server.tool()
    async def pester_old(key: str, context: Context) -> str:
        """Ask for ever in the handshake era, whatever the answers are."""
        while True:
            record("pester_old", key)
            await context.elicit("Which year?", Year)

    @server.tool()
    async def login(context: Context) -> str | InputRequiredResult:
        """Ask for a secret."""
        if (answer := content_of(context, "login")) is not None:
            return str(sorted(answer))
        return InputRequiredResult(
            input_requests={"login": form("Log in.", password={"type": "string", "minLength": 8})}
        )

    @server.tool()
    async def enroll(context: Context) -> str | InputRequiredResult:
        """Ask for a field of each kind, of which only `name` has to be there."""
        if (answer := content_of(context, "enroll")) is not None:
            return json.dumps(answer, sort_keys=True)
        params = ElicitRequestFormParams(message="Who are you?", requested_schema=EVERYTHING)
        return InputRequiredResult(input_requests={"enroll": ElicitRequest(params=params)})

    @server.tool()
    async def sample() -> str | InputRequiredResult:
        """Ask for a sample of a model."""
        messages = [SamplingMessage(role="user", content=TextContent(type="text", text="hi"))]
        request = CreateMessageRequest(params=CreateMessageRequestParams(messages=messages, max_tokens=5))
        return InputRequiredResult(input_requests={"sample": request})

    @server.tool()
    async def capabilities(context: Context) -> bool:
        """Whether this call's client says that it can be asked."""
        found = context.client_capabilities
        return found is not None and found.elicitation is not None

    @server.resource("report://{name}")
    async def report(name: str, context: Context) -> str | InputRequiredResult:
        if (answer := content_of(context, "year")) is not None:
            return f"{name} of {answer.get('year')}"
        return InputRequiredResult(input_requests={"year": form("Which year?", year={"type": "integer"})})

    @server.prompt()
    async def greet(context: Context) -> str | InputRequiredResult:
        if (answer := content_of(context, "whom")) is not None:
            return f"Greet {answer.get('whom')}."
        return InputRequiredResult(input_requests={"whom": form("Whom?", whom={"type": "string"})})

    # The same two in the handshake era.

    @server.resource("old-report://{name}")
    async def old_report(name: str, context: Context) -> str:
        answer = await context.elicit("Which year?", Year)
        return f"{name} of {answer.data.year}" if answer.action == "accept" else answer.action

    @server.prompt()
    async def old_greet(context: Context) -> str:
        answer = await context.elicit("Which year?", Year)
        return f"Welcome to {answer.data.year}." if answer.action == "accept" else answer.action

    return server


def main() -> None:
    parser = build_parser(__doc__)
    options = parser.parse_args()
    serve(build(options.ledger), options)


if __name__ == "__main__":
    main()
