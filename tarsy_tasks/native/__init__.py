"""Python functions as tools.

Owns what makes a function a tool, for both places where it can run: in the process of an agent (`@tools.native`), and
on the side of the workers, as an MCP server that is one module (`native` in the configuration; `__main__`). Only
`server` knows MCP. `mark` marks a function, `tool` makes it a tool, `module` finds the marked ones of a module,
`threads` run what may block.
"""
