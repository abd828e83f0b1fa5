"""How clients' texts refer to variables, files and folders, converted to our references (`variables`).

Owns their syntax. What a client asks its user for, or knows, is read from a variable: `${input:github-token}` is
`${INPUT_GITHUB_TOKEN}`, and a setting `${config:python.path}` is `${CONFIG_PYTHON_PATH}`.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["BRACES", "DOLLAR_NAMES", "DOUBLE_BRACES", "Placeholder", "Surroundings", "replace_placeholders"]

_FOLDERS = (".vscode", ".cursor", ".roo", ".kilocode", ".kiro", ".zed", ".gemini", ".codex", ".claude", ".continue")
"""Folders of a workspace in which its clients keep their files."""


class Surroundings(NamedTuple):
    """What the placeholders of a file may refer to.

    Attributes:
        path: The file.
        inputs: Ids of what the client asks its user for, and their defaults, if any.
    """

    path: Path
    inputs: Mapping[str, str | None] = {}

    @property
    def workspace(self) -> Path:
        """The folder that the file was written for."""
        folder = self.path.absolute().parent
        return folder.parent if folder.name in _FOLDERS else folder

    def resolve(self, path: str) -> str:
        """A path as a client reads it: from the home of its user, or from the folder of the file."""
        if path.startswith("~/"):
            return f"${{HOME}}{path[1:]}"
        return path if path.startswith(("/", "$")) else str(self.path.absolute().parent / path)


class Placeholder(NamedTuple):
    """One form, and the text in place of it."""

    pattern: re.Pattern[str]
    replace: Callable[[re.Match[str], Surroundings], str]


def _variable(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).upper()


def _input(match: re.Match[str], surroundings: Surroundings) -> str:
    default = surroundings.inputs.get(match["id"])
    name = f"INPUT_{_variable(match['id'])}"
    return f"${{{name}:-{default}}}" if default and not set(default) & set("${}") else f"${{{name}}}"


def _of_editor(match: re.Match[str], _: Surroundings) -> str:
    return f"${{{_variable(match['what'])}_{_variable(match['id'])}}}"


def _folder(match: re.Match[str], surroundings: Surroundings) -> str:
    workspace = surroundings.workspace
    return {
        "workspaceFolder": str(workspace),
        "workspaceRoot": str(workspace),
        "workspacePath": str(workspace),
        "cwd": str(workspace),
        "extensionPath": str(surroundings.path.absolute().parent),
        "workspaceFolderBasename": workspace.name,
        "userHome": "${HOME}",
        "pathSeparator": "/",
        "/": "/",
    }[match["what"]]


def _name(match: re.Match[str], _: Surroundings) -> str:
    return f"${{{match['name']}}}"


def _secret_name(match: re.Match[str], _: Surroundings) -> str:
    return f"${{{_variable(match['name'])}}}"


def _name_or_nothing(match: re.Match[str], _: Surroundings) -> str:
    """What the client knows of its user is known to no worker; a header with an empty value is not sent."""
    return f"${{{match['name']}:-}}" if match["of_user"] else f"${{{match['name']}}}"


def _file(match: re.Match[str], surroundings: Surroundings) -> str:
    return f"${{file:{surroundings.resolve(match['path'])}}}"


BRACES = (
    Placeholder(re.compile(r"(?<!\$)\{env:(?P<name>[A-Za-z_]\w*)\}"), _name),
    Placeholder(re.compile(r"(?<!\$)\{file:(?P<path>[^{}]+)\}"), _file),
)
"""`{env:NAME}` and `{file:path}`."""

DOLLAR_NAMES = (Placeholder(re.compile(r"(?<![\w$\\])\$(?P<name>[A-Z_][A-Z0-9_]*)\b"), _name),)
"""`$NAME`."""

DOUBLE_BRACES = (
    Placeholder(re.compile(r"\{\{\s*(?P<name>(?P<of_user>LIBRECHAT_)?[A-Z][A-Z0-9_]*)\s*\}\}"), _name_or_nothing),
)
"""`{{NAME}}`."""

_EVERYWHERE = (
    Placeholder(re.compile(r"(?<!\$)\$\{input:(?P<id>[^{}]+)\}"), _input),
    Placeholder(re.compile(r"(?<!\$)\$\{(?P<what>config|command):(?P<id>[^{}]+)\}"), _of_editor),
    Placeholder(re.compile(r"(?<![\w$\\{])\$(?P<name>COPILOT_MCP_\w+)"), _name),
    Placeholder(
        re.compile(
            r"(?<!\$)\$\{(?P<what>workspaceFolder|workspaceRoot|workspacePath|cwd|extensionPath|workspaceFolderBasename"
            r"|userHome|pathSeparator|/)(?::[^{}]*)?\}"
        ),
        _folder,
    ),
    Placeholder(
        re.compile(r"\$\{\{\s*(?:secrets|inputs)\.(?:[\w-]+/)*(?P<name>[\w.-]+)\s*\}\}"),
        _secret_name,
    ),
)
"""The placeholders of VS Code, which many clients share, the secrets of GitHub's coding agent, and Continue's
`${{ secrets.NAME }}`: they mean nothing else anywhere."""


def replace_placeholders(text: str, forms: tuple[Placeholder, ...], surroundings: Surroundings) -> str:
    """A text with our references in place of a client's; those of `forms`, and those that every file may have."""
    if "$" in text or "{" in text:
        for form in (*forms, *_EVERYWHERE):
            text = form.pattern.sub(lambda match, form=form: form.replace(match, surroundings), text)
    return text
