"""The package as a whole: what importing it costs, what it offers, and that its map is true."""

import ast
import pickle
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from pydantic import SecretStr

import tarsy_tasks
from tarsy_tasks import errors
from tarsy_tasks.config import ServerConfig, Timeouts
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.settings import Settings, load_settings
from tests.source import parse

PACKAGE = Path(tarsy_tasks.__file__).parent
ROOT = Path(__file__).parents[2]


def imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import tarsy_tasks",
        "from tarsy_tasks import ToolExecutor, AsyncToolExecutor, ToolCall, ToolResult, tool_signature",
        "import tarsy_tasks.agent.executor, tarsy_tasks.agent.async_executor, tarsy_tasks.agent.signatures",
        "import tarsy_tasks.tool_names, tarsy_tasks.arguments, tarsy_tasks.config, tarsy_tasks.errors",
        "import tarsy_tasks.health, tarsy_tasks.catalogue, tarsy_tasks.telemetry.audit",
        "from tarsy_tasks import mask_text; mask_text('password: x')",
    ],
)
def test_the_agents_half_imports_no_server_side_library(statement: str) -> None:
    assert imported_by(statement).isdisjoint({"mcp", "yaml", "jsonschema_rs", "celery", "tarsy_tasks.worker"})


def test_names_of_secrets_are_known_without_the_search_for_them() -> None:
    assert "re2" not in imported_by("import tarsy_tasks.agent.executor, tarsy_tasks.arguments, tarsy_tasks.config")


def test_importing_the_package_imports_nothing_else() -> None:
    ours = {name for name in imported_by("import tarsy_tasks") if name.startswith("tarsy_tasks")}
    assert ours == {"tarsy_tasks"}


@pytest.mark.parametrize(("half", "other"), [("agent", "worker"), ("worker", "agent")])
def test_the_two_halves_never_import_each_other(half: str, other: str) -> None:
    for path in sorted((PACKAGE / half).glob("*.py")):
        for node in ast.walk(parse(path)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(f"tarsy_tasks.{other}") for name in names), f"{path.name}:{node.lineno}"


def test_every_public_name_can_be_loaded() -> None:
    assert set(tarsy_tasks.__all__) <= set(dir(tarsy_tasks))
    for name in tarsy_tasks.__all__:
        assert getattr(tarsy_tasks, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        tarsy_tasks.nothing_like_it  # noqa: B018


def test_mapped_files_exist_and_every_module_has_a_docstring() -> None:
    files = [word for word in (tarsy_tasks.__doc__ or "").split() if word.endswith(".py") and "/" in word]
    assert len(files) >= 7
    for name in files:
        assert (PACKAGE / name).is_file(), name
    for path in PACKAGE.rglob("*.py"):
        # Not `ast.parse`, which Python 3.11 fails while another thread formats a traceback.
        docstring = compile(path.read_text(), path, "exec").co_consts[0]
        assert isinstance(docstring, str), f"{path} has no docstring"


def test_the_maps_of_folders_name_modules_that_exist() -> None:
    found = 0
    for init in PACKAGE.rglob("__init__.py"):
        for line in compile(init.read_text(), init, "exec").co_consts[0].splitlines():
            names, gap, _ = line.strip().partition("  ")
            if gap and re.fullmatch(r"\w+(, \w+)*", names):
                missing = [name for name in names.split(", ") if not [*init.parent.glob(f"{name}*")]]
                assert not missing, f"{init.parent.name}: {missing}"
                found += 1
    assert found > 50


def test_every_error_is_in_the_tree_and_survives_the_queue() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.TarsyTasksError)
        assert name in (errors.__doc__ or "")
        has_code = issubclass(kind, errors.CallError) and kind not in (errors.CallRefused, errors.RateLimited)
        first = kind(*((ErrorCode.TOOL_ERROR, "text") if has_code else ("text",)))
        for again in (kind(*first.args), pickle.loads(pickle.dumps(first))):
            assert str(again) == "text"
            assert vars(again) == vars(first)


def test_every_error_code_is_documented_with_its_outcome() -> None:
    page = (ROOT / "docs" / "error-codes.md").read_text()
    for code in ErrorCode:
        assert f"| `{code}` | `{code.outcome}` |" in page


def test_the_ci_runs_the_commands_of_the_readme() -> None:
    readme, script = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    for marker in ("demo command", "test command"):
        assert readme.count(f"<!-- {marker} -->\n```sh\n") == 1
        assert f"'{marker}'" in script


def test_every_key_of_a_server_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name in ServerConfig.model_fields.keys() - {"name"}:
        assert f"| `{name}` |" in page
    defaults = Timeouts().model_dump(exclude={"tools", "progress_extends"})
    for name, seconds in defaults.items():
        assert f"| `{name}` | `{seconds:g}` |" in page


def test_every_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
        default = f"{default:g}" if isinstance(default, float) else default
        shown = "" if default in (None, ()) else f"`{default}`"
        assert f"| `TARSY_{name.upper()}` | {shown}" in page


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TARSY_STARTUP", "lenient"),
        ("TARSY_STARTUP_TIMEOUT_S", "0"),
        ("TARSY_STARTUP_TIMEOUT_S", "inf"),
        ("TARSY_METRICS_PORT", "70000"),
        ("TARSY_ALERT_WEBHOOK", "file:///etc/passwd"),
        ("TARSY_AUDIT_ENTRIES", "-1"),
        ("TARSY_AUDIT_REQUIRED", "perhaps"),
        ("TARSY_ALERT_WEBHOOK_SECRET", "whsec_pa55?w0rd"),
        ("TARSY_ALERT_WEBHOOK_SECRET", "whsec_YWJ"),
        ("TARSY_ALERT_WEBHOOK_SECRET", "whsec_"),
        ("TARSY_TOKEN_KEY", "pa55w0rd"),
        ("TARSY_TOKEN_KEY", "pa55?"),
        ("TARSY_REDIS_URL", "redis://:pa55/w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://user:pa55#w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://user:pa55?w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://user:1234?w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://user:1234/w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://user:[pa55w0rd@127.0.0.1:6379/0"),
        ("TARSY_REDIS_URL", "redis://127.0.0.1:6379/pa55"),
        ("TARSY_REDIS_URL", "redis://:pa55w0rd@:6379/0"),
        ("TARSY_REDIS_URL", "redis://127.0.0.1:66379/0"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"^{variable}: ") as caught:
        load_settings()
    shown = "".join(traceback.format_exception(caught.value))
    assert "pa55" not in shown
    assert "w0rd" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis",
        "redis://redis:6379",
        "redis://redis:6379/",
        "rediss://user:pa55%2Fw0rd%40@[::1]:6380/15?ssl_cert_reqs=required",
        "redis://:a@b:c@redis_1/0",
    ],
)
def test_an_address_of_redis_may_be_written_in_many_ways(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TARSY_REDIS_URL", url)
    assert load_settings().redis_url.get_secret_value() == url


def test_a_wrong_variable_is_answered_with_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: dict[str, str] = {}
    for name in Settings.model_fields:
        variable = f"TARSY_{name.upper()}"
        with monkeypatch.context() as environment:
            environment.setenv(variable, "whsec_")
            try:
                load_settings()
            except ConfigError as error:
                refused[variable] = str(error)
    assert {"TARSY_REDIS_URL", "TARSY_STARTUP", "TARSY_ALERT_WEBHOOK_SECRET", "TARSY_AUDIT_REQUIRED"} <= refused.keys()
    for variable, text in refused.items():
        assert text.startswith(f"{variable}: not valid; expected ")


def test_an_audit_that_is_required_has_to_go_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARSY_AUDIT_REQUIRED", "true")
    monkeypatch.setenv("TARSY_AUDIT_ENTRIES", "0")
    with pytest.raises(ConfigError, match="TARSY_AUDIT_FILE"):
        load_settings()
    monkeypatch.setenv("TARSY_AUDIT_FILE", "audit.jsonl")
    assert load_settings().audit_required


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    done = subprocess.run([Path(sys.executable).parent / "tarsy-tasks", "--help"], capture_output=True, text=True)
    commands = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert len(commands) >= 6
    for command in commands:
        assert f"| `{command}" in page
