import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import function_name, listed_name, resolve_server, resolve_tool_name

CATALOGUE = {
    "k8s": ["pods_list", "pods_delete", "apps.v1.list"],
    "github": ["list_issues", "admin_users"],
    "github_admin": ["users", "teams"],
    "my-server": ["do__it", "_private"],
    "7zip": ["extract"],
}

server_ids = st.from_regex(SERVER_ID_PATTERN, fullmatch=True).filter(lambda name: len(name) < 80)
tool_names = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=90)
catalogues = st.dictionaries(
    server_ids, st.lists(tool_names, min_size=1, max_size=4, unique=True), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k8s.pods_list", ("k8s", "pods_list")),
        ("k8s__pods_list", ("k8s", "pods_list")),
        ("k8s:pods_list", ("k8s", "pods_list")),
        ("mcp_k8s_pods_list", ("k8s", "pods_list")),
        ("mcp__k8s__pods_list", ("k8s", "pods_list")),
        ("default_api:k8s.pods_list", ("k8s", "pods_list")),
        ("default_api.k8s__pods_list", ("k8s", "pods_list")),
        ("functions.k8s.pods_list", ("k8s", "pods_list")),
        ("functions:k8s__pods_list", ("k8s", "pods_list")),
        ("k8s.apps.v1.list", ("k8s", "apps.v1.list")),
        ("my-server__do__it", ("my-server", "do__it")),
        ("my-server___private", ("my-server", "_private")),
        ("mcp_github_admin_teams", ("github_admin", "teams")),
        ("7zip.extract", ("7zip", "extract")),
    ],
)
def test_every_form_of_a_name_finds_its_tool(name: str, expected: tuple[str, str]) -> None:
    assert resolve_tool_name(name, CATALOGUE) == expected
    assert resolve_server(name.replace("mcp_github_admin_", "mcp__github_admin__"), CATALOGUE) == expected


@pytest.mark.parametrize("tool", ["find the way", "größe", "x\n\n## y", "a.b c"])
def test_a_tool_is_called_by_the_name_that_its_server_lists(tool: str) -> None:
    for catalogue in ({"desk": [tool]}, {"desk": [listed_name(tool)], "other": ["find"]}):
        assert resolve_tool_name(f"desk.{tool}", catalogue) == ("desk", *catalogue["desk"])
        assert resolve_server(f"desk.{tool}", catalogue) == ("desk", tool)
    selection = Selection(["desk"], {"desk": [tool]}, None)
    for name in (f"desk.{tool}", f"desk.{listed_name(tool)}", function_name("desk", listed_name(tool))):
        assert selection.resolve(name) == ("desk", listed_name(tool))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.INVALID_NAME),
        ("k8s.pods list", ErrorCode.INVALID_NAME),
        ("k8s", ErrorCode.INVALID_NAME),
        ("pods_list", ErrorCode.INVALID_NAME),
        (".pods_list", ErrorCode.INVALID_NAME),
        ("k8s.", ErrorCode.INVALID_NAME),
        ("k8s__", ErrorCode.INVALID_NAME),
        ("k8s. pods_list", ErrorCode.INVALID_NAME),
        (" k8s.pods_list", ErrorCode.INVALID_NAME),
        ("k8s.pods_list\n", ErrorCode.INVALID_NAME),
        ("k8s." + "x" * 1000, ErrorCode.INVALID_NAME),
        ("k9s.pods_list", ErrorCode.UNKNOWN_SERVER),
        ("K8s.pods_list", ErrorCode.UNKNOWN_SERVER),
        ("k8s.pods", ErrorCode.UNKNOWN_TOOL),
        ("k8s.apps.v2.list", ErrorCode.UNKNOWN_TOOL),
        ("github.k8s__pods_list", ErrorCode.UNKNOWN_TOOL),
    ],
)
def test_a_name_that_means_no_tool_is_refused(name: str, code: ErrorCode) -> None:
    with pytest.raises(ToolNameError) as refused:
        resolve_tool_name(name, CATALOGUE)
    assert refused.value.code is code
    assert "Nothing was sent" in str(refused.value)


def test_a_name_with_two_meanings_is_refused_with_both() -> None:
    with pytest.raises(ToolNameError, match=r"github\.admin_users, github_admin\.users") as refused:
        resolve_tool_name("mcp_github_admin_users", CATALOGUE)
    assert refused.value.code is ErrorCode.INVALID_NAME


def test_the_closest_names_come_first_and_the_text_is_bounded() -> None:
    catalogue = {f"server{n}": [f"tool_{n}_{m}_{'x' * 60}" for m in range(50)] for n in range(100)}
    catalogue["k8s"] = ["pods_list", "pods_delete", "nodes_list"]
    with pytest.raises(ToolNameError, match=r"closest first: k8s\.pods_list") as refused:
        resolve_tool_name("k8s.pod_list", catalogue)
    for name in ("k9s.pods_list", "pods_list", "server1.nothing", "x" * 5000):
        with pytest.raises(ToolNameError) as refused:
            resolve_tool_name(name, catalogue)
        assert len(str(refused.value)) < 1500


def test_a_tool_of_another_server_is_pointed_out() -> None:
    with pytest.raises(ToolNameError, match=r"Tools with that name: k8s\.pods_list"):
        resolve_tool_name("kubernetes.pods_list", CATALOGUE)


def test_a_server_that_is_called_like_a_prefix_keeps_its_name() -> None:
    assert resolve_tool_name("functions.run", {"functions": ["run"]}) == ("functions", "run")
    assert resolve_tool_name("mcp__run", {"mcp": ["run"]}) == ("mcp", "run")


def test_a_server_is_found_without_its_tools() -> None:
    assert resolve_server("k8s.whatever.it.is", ["k8s"]) == ("k8s", "whatever.it.is")
    with pytest.raises(ToolNameError) as refused:
        resolve_server("k9s.x", ["k8s", "github"])
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER
    with pytest.raises(ToolNameError) as refused:
        resolve_server("mcp_github_admin_users", ["github", "github_admin"])
    assert refused.value.code is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("limit", [24, 32, 64, 128])
@given(catalogue=catalogues)
def test_a_function_name_fits_and_leads_back(limit: int, catalogue: dict[str, list[str]]) -> None:
    seen: set[str] = set()
    for server, tools in catalogue.items():
        for tool in tools:
            name = function_name(server, tool, limit)
            assert re.fullmatch(rf"[A-Za-z_][A-Za-z0-9_-]{{0,{limit - 1}}}", name)
            assert name not in seen
            seen.add(name)
            assert resolve_tool_name(name, catalogue) == (server, tool)
            assert resolve_tool_name(f"{server}.{tool}", catalogue) == (server, tool)


@given(catalogue=catalogues)
def test_agent_and_worker_agree_on_a_function_name(catalogue: dict[str, list[str]]) -> None:
    for server, tools in catalogue.items():
        for tool in tools:
            found, rest = resolve_server(function_name(server, tool, 128), catalogue)
            assert resolve_tool_name(f"{found}.{rest}", catalogue) == (server, tool)


@given(name=st.text(max_size=60) | st.from_regex(r"[a-z8_.:]{0,30}", fullmatch=True))
def test_any_text_is_a_tool_or_an_error(name: str) -> None:
    for resolve in (lambda: resolve_tool_name(name, CATALOGUE), lambda: resolve_server(name, CATALOGUE)):
        with suppress(ToolNameError):
            assert resolve()[0] in CATALOGUE


def test_a_plain_name_is_not_changed_and_a_long_one_is_stable() -> None:
    assert function_name("k8s", "pods_list") == "k8s__pods_list"
    assert function_name("k8s", "apps.v1.list") == "k8s__apps_v1_list_4ccffc5c4d0a"
    assert function_name("7zip", "extract") == "mcp_7zip__extract"
    assert len(function_name("s" * 50, "t" * 50)) == 64
    with pytest.raises(ValueError, match="limit"):
        function_name("k8s", "pods_list", 10)


def test_a_server_named_with_the_mcp_prefix_keeps_its_names() -> None:
    catalogue = {"mcp_x": ["t"], "x": ["t"], "3x": ["t"], "mcp_3x": ["t"], "mcp_mcp_x": ["t"]}
    names = {function_name(server, "t"): (server, "t") for server in catalogue}
    assert len(names) == len(catalogue)
    for name, expected in names.items():
        assert resolve_tool_name(name, catalogue) == resolve_server(name, catalogue) == expected
    with pytest.raises(ToolNameError, match="more than one tool"):
        resolve_tool_name("mcp_x__t", {"mcp_x": ["t"], "x": ["t"]})


def test_a_name_that_mixes_two_forms_is_rejected_as_such() -> None:
    with pytest.raises(ToolNameError, match=r"mixes two ways .* write my-srv\.a\.b\.") as refused:
        resolve_tool_name("my-srv__a.b", {"my-srv": ["a.b"]})
    assert refused.value.code is ErrorCode.INVALID_NAME


@pytest.mark.parametrize("name", ["k8s.\ud800", "\ud800.x", "\ud800", "k8s__\ud800.x"])
def test_half_of_a_character_in_a_name_is_escaped_in_the_error(name: str) -> None:
    with pytest.raises(ToolNameError, match=r"\\ud800") as refused:
        resolve_tool_name(name, CATALOGUE)
    str(refused.value).encode()


def test_a_definition_knows_its_function_name() -> None:
    tool = ToolDefinition(name="k8s.pods_list", server="k8s", tool="pods_list")
    assert tool.function_name() == "k8s__pods_list"
    assert len(tool.model_copy(update={"tool": "x" * 90}).function_name(limit=40)) == 40


@pytest.mark.parametrize(
    ("server", "is_id"),
    [
        ("k8s", True),
        ("a", True),
        ("a-b_c", True),
        ("-a", False),
        ("a_", False),
        ("a__b", False),
        ("é", False),
        ("", False),
    ],
)
def test_server_ids(server: str, is_id: bool) -> None:
    assert bool(re.fullmatch(SERVER_ID_PATTERN, server)) is is_id
