"""What the pages tell readers to type and to write down: commands and options exist, configurations are valid."""

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_command
from celery.worker.control import Panel

from tarsy_tasks.broker.acl import PARTS
from tarsy_tasks.cli import main
from tarsy_tasks.config import load_config
from tarsy_tasks.settings import Settings
from tarsy_tasks.worker.process import control  # noqa: F401 - its commands
from tests.docs.blocks import DOCS, PAGES, ROOT, name_of, read_blocks, read_commands

KUBERNETES = ROOT / "deploy" / "kubernetes"
_INLINE = re.compile(r"`tarsy-tasks ([a-z-]+)(?: ([a-z|-]+))?")


def check_command(words: list[str]) -> None:
    """Fails for a command or an option of ours, or of Celery, that does not exist. Runs nothing."""
    program = Path(words[0]).name
    if program == "tarsy-tasks":
        command, rest = main, words[1:]
    elif program == "celery":
        command, rest = celery_command, words[1:]
        assert rest[0] == "-A", words
        rest = rest[2:]
    else:
        return
    context = click.Context(command, info_name=program, obj=CLIContext(Celery(set_as_current=False), False, None))
    while isinstance(command, click.Group):
        assert rest, f"no command: {words}"
        found = command.get_command(context, rest[0])
        assert found is not None, f"{program} has no {rest[0]}: {words}"
        command, rest = found, rest[1:]
    if program == "celery" and command.name in ("inspect", "control"):
        assert rest[0] in Panel.meta, f"no worker knows {rest[0]}: {words}"
        return
    try:
        command.make_context(command.name, list(rest), parent=context)
    except click.UsageError as error:
        pytest.fail(f"{shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_of_a_page_exist(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mcp.json").write_text("{}")
    (tmp_path / "tarsy.yaml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for block in read_blocks(page):
        if block.language in ("sh", "console"):
            for words in read_commands(block):
                check_command(words)
    for verb, second in _INLINE.findall(page.read_text(encoding="utf-8")):
        command = main.get_command(click.Context(main), verb)
        assert command is not None, f"tarsy-tasks {verb}"
        if isinstance(command, click.Group) and second:
            assert set(second.split("|")) <= set(command.commands), f"tarsy-tasks {verb} {second}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_shows_are_valid(page: Path, tmp_path: Path) -> None:
    for block in read_blocks(page):
        where = f"line {block.line}"
        match block.language:
            case "python":
                ast.parse(block.code)
            case "json" | "jsonc" if "mcpServers" in block.code:
                (tmp_path / "mcp.json").write_text(block.code)
                load_config(tmp_path / "mcp.json")
            case "json":
                assert json.loads(block.code), where
            case "toml":
                assert tomllib.loads(block.code), where
            case "yaml" if not block.code.startswith("--8<--"):
                assert yaml.safe_load(block.code), where
            case "sh" | "console" | "text" | "yaml" | "":
                pass
            case other:
                pytest.fail(f"{where}: nothing checks {other}")


def containers() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Of all manifests: the file, the container, the pod."""
    documents = [
        (path.name, document) for path in KUBERNETES.glob("*.yaml") for document in yaml.safe_load_all(path.read_text())
    ]
    pods = [(name, found["spec"]["template"]["spec"]) for name, found in documents if "template" in found["spec"]]
    return [(name, container, pod) for name, pod in pods for container in pod["containers"]]


def test_manifests_run_commands_that_exist() -> None:
    seen: set[str] = set()
    for name, container, _ in containers():
        if container["image"].startswith("tarsy-tasks"):
            check_command(["celery", "-A", "tarsy_tasks", *container["args"]])
            seen.add(container["args"][-1] if container["args"][0] == "mcp" else container["args"][0])
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            words = container.get(kind, {}).get("exec", {}).get("command", [])
            if words[:2] == ["sh", "-c"]:
                words = shlex.split(words[2].partition("|")[0])
            if words:
                check_command(words)
        known = {"home", *Settings.model_fields, *(f"acl_{part}" for part in (*PARTS, "agent"))}
        read = {each["name"].removeprefix("TARSY_").removesuffix("_FILE").lower() for each in container["env"]}
        assert read <= known, name
    assert {"worker", "beat", "--port=5555"} <= seen


def test_manifests_use_the_secrets_that_the_page_creates() -> None:
    created: dict[str, set[str]] = {}
    for block in read_blocks(DOCS / "how-to" / "kubernetes.md"):
        for words in read_commands(block) if block.language == "sh" else ():
            if words[:2] == ["kubectl", "create"]:
                files = [word.removeprefix("--from-file=") for word in words if word.startswith("--from-file=")]
                name = words[4] if words[2] == "secret" else words[3]
                created[name] = {file.partition("=")[0] if "=" in file else Path(file).name for file in files}
    for file, container, pod in containers():
        mounted: dict[str, str] = {}
        for volume in pod["volumes"]:
            source = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            assert source is None or source in created, f"{file}: {source}"
            mounted |= {
                mount["mountPath"]: source
                for mount in container["volumeMounts"]
                if mount["name"] == volume["name"] and source
            }
        for variable in container["env"]:
            folder, _, key = variable["value"].rpartition("/")
            if folder in mounted:
                assert key in created[mounted[folder]], f"{file}: {variable}"


def test_the_api_pages_have_all_public_names_and_no_others() -> None:
    shown = {
        name for page in (DOCS / "api").glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    for module in ("tarsy_tasks", "tarsy_tasks.testing", "tarsy_tasks.interceptors", "tarsy_tasks.health"):
        public = set(__import__(module, fromlist=["__all__"]).__all__) - {"app"}
        assert {f"{module}.{name}" for name in public} == {name for name in shown if name.rpartition(".")[0] == module}
    for name in ("openai", "openai_agents", "anthropic", "gemini", "langchain", "pydantic_ai"):
        module = f"tarsy_tasks.adapters.{name}"
        assert {f"{module}.{each}" for each in __import__(module, fromlist=["__all__"]).__all__} <= shown
