"""`python -m tarsy_tasks.native SERVER MODULE`: serves the functions of a module over stdio.

A worker starts it for a server with the key `native`, as any other program, so a function can harm only this process.
"""

import sys

from tarsy_tasks.native.module import load_tools

__all__ = ["main"]


def main() -> None:
    """Serve until stdin is closed. Exits with 1 if the module cannot be served."""
    server, module = sys.argv[1:]
    try:
        tools = load_tools(server, module)
    except ValueError as error:
        sys.exit(f"native: {error}")
    import anyio  # slower than most modules that fail

    from tarsy_tasks.native.server import serve

    anyio.run(serve, server, tools)


if __name__ == "__main__":
    main()
