"""The tools of MCP servers in the conventions of frameworks for agents, and of the clients of model providers.

    openai         tools and messages of chat completions, tools and items of the Responses API
    openai_agents  `FunctionTool`s of the OpenAI Agents SDK
    anthropic      tools and `tool_result` blocks of the Messages API
    gemini         function declarations and function responses of google-genai
    langchain      `StructuredTool`s, and a client in place of that of langchain-mcp-adapters
    pydantic_ai    a toolset
    providers      what each provider refuses in the definition of a tool, and how that is fixed
    offer          the tools as they are offered to a model, and the calls that come back
    toolbox        an offer together with an executor, for providers whose client returns calls
    parts          what a model reads of a result: text, images, documents
    framework      the error for a framework that is not installed

Each is an extra of the package, and docs/frameworks/ has a page for it. They use the public names of `tarsy_tasks`
only. Importing this package imports none of the frameworks.
"""
