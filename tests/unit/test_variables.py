"""References to environment variables in a server's configuration."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import SecretStr

from tarsy_tasks.config import BearerAuth, ServerConfig
from tarsy_tasks.config.inheritance import variables_of
from tarsy_tasks.config.resolved import resolve_variables
from tarsy_tasks.config.variables import find_references
from tarsy_tasks.errors import ConfigError

ENVIRON = {"A": "one", "B_2": "two", "EMPTY": "", "NESTED": "${A} {{.A}} $${A}"}


def resolve_argument(text, environ=ENVIRON):
    return resolve_variables(ServerConfig(name="s", command="x", args=[text]), environ).args[0].get_secret_value()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "one"),
        ("${env:A}", "one"),
        ("{{.A}}", "one"),
        ("{{ .A }}", "one"),
        ("a${A}b${B_2}c{{.A}}", "aonebtwocone"),
        ("${A}${A}", "oneone"),
        ("${A:-x}", "one"),
        ("${GONE:-x y}", "x y"),
        ("${GONE:-}", ""),
        ("${env:GONE:-https://x/a:1}", "https://x/a:1"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("$${A} ${A}", "${A} one"),
        ("$${not a variable", "${not a variable"),
        ("$A", "$A"),
        ("$(A)", "$(A)"),
        ("$$", "$$"),
        ("{{A}}", "{{A}}"),
        ("{{json .A}}", "{{json .A}}"),
        ("{.A}", "{.A}"),
        ("${NESTED}", "${A} {{.A}} $${A}"),
        ("${GONE:-{{.A}}}", "{{.A}}"),
    ],
)
def test_a_reference_is_replaced_once_by_its_value(text, expected):
    assert resolve_argument(text) == expected


@pytest.mark.parametrize(
    "text", ["${", "${}", "${A", "${1}", "${A-b}", "${input:token}", "${A:-${B}}", "${ A }", "x ${#a}"]
)
def test_a_malformed_reference_is_an_error_with_the_remedy(text):
    with pytest.raises(ValueError, match=r"write `\$\$\{` for a literal"):
        ServerConfig(name="s", command="x", args=[text])


def test_references_are_resolved_in_all_strings_of_a_server():
    child = ServerConfig(name="s", command="${A}", args=["${A}", "-"], env={"${A}": "${A}"}, cwd="/${A}")
    resolved = resolve_variables(child, ENVIRON)
    assert (resolved.command, resolved.cwd) == ("one", "/one")
    assert resolved.args == (SecretStr("one"), SecretStr("-"))
    assert resolved.env == {"${A}": SecretStr("one")}  # names stay

    remote = ServerConfig.model_validate(
        {
            "name": "s",
            "url": "https://${A}/mcp",
            "headers": {"X": "${A}"},
            "auth": {"type": "bearer", "token": "{{.A}}"},
            "ca_file": "/${A}",
        }
    )
    resolved = resolve_variables(remote, ENVIRON)
    assert (resolved.url, resolved.ca_file) == (SecretStr("https://one/mcp"), "/one")
    assert resolved.headers == {"X": SecretStr("one")}
    assert resolved.auth == BearerAuth(type="bearer", token=SecretStr("one"))


def test_the_configuration_itself_stays_unresolved():
    server = ServerConfig(name="s", command="${A}")
    resolve_variables(server, ENVIRON)
    assert server.command == "${A}"


def test_the_variables_of_a_server_include_those_with_a_default():
    server = ServerConfig.model_validate(
        {
            "name": "s",
            "url": "${URL}",
            "headers": {"X": "${H:-x}", "Y": "$${NOT}"},
            "auth": {"type": "bearer", "token": "{{.T}}"},
            "instructions": "${NOT}",
        }
    )
    assert variables_of(server) == {"URL", "H", "T"}
    assert variables_of(ServerConfig(name="s", command="x", args=["${A}${env:B}"], env={"C": "${A}"})) == {"A", "B"}


def test_every_unset_variable_has_its_place_and_the_remedy():
    server = ServerConfig.model_validate(
        {
            "name": "k8s",
            "url": "${URL}/${URL}",
            "headers": {"Authorization": "Bearer ${TOKEN}", "X-Set": "${A}"},
        }
    )
    with pytest.raises(ConfigError) as caught:
        resolve_variables(server, ENVIRON)
    assert str(caught.value).split("\n") == [
        "servers.k8s.url: the variable URL is not set; set it where the worker runs, or write `${URL:-default}`",
        (
            "servers.k8s.headers.Authorization: the variable TOKEN is not set; "
            "set it where the worker runs, or write `${TOKEN:-default}`"
        ),
    ]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"url": "${V}"}, "servers.s.url: contains a control character"),
        ({"url": "${A}"}, "servers.s.url: not a valid URL; expected one such as"),
        ({"url": "http://h", "headers": {"A": "x${V}"}}, "servers.s.headers.A: contains a control character"),
        (
            {"url": "http://h", "auth": {"type": "bearer", "token": "${V}"}},
            "servers.s.auth.token: contains a control char",
        ),
        ({"command": "${V}"}, "servers.s.command: contains a control character"),
        ({"command": "${EMPTY}"}, "servers.s.command: found an empty value"),
        ({"command": "x", "cwd": "${EMPTY}"}, "servers.s.cwd: found an empty value"),
        ({"command": "x", "args": ["${NUL}"]}, "servers.s.args[0]: contains a NUL"),
        ({"command": "x", "env": {"A": "${NUL}"}}, "servers.s.env.A: contains a NUL"),
        ({"url": "${NESTED}"}, "servers.s.url: not a valid URL; expected one such as"),
    ],
)
def test_resolved_values_are_checked_and_not_shown(keys, text):
    environ = {**ENVIRON, "V": "hunter2\n", "NUL": "hunter2\0"}
    with pytest.raises(ConfigError) as caught:
        resolve_variables(ServerConfig.model_validate({"name": "s", **keys}), environ)
    assert str(caught.value).startswith(text)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_many_lines_may_go_into_arguments_and_the_environment():
    server = ServerConfig(name="s", command="x", args=["${PEM}"], env={"KEY": "${PEM}"})
    resolved = resolve_variables(server, {"PEM": "-----BEGIN\nx\n"})
    pem = SecretStr("-----BEGIN\nx\n")
    assert (resolved.args, resolved.env) == ((pem,), {"KEY": pem})


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30))
def test_any_text_survives_as_a_value_and_escaped_as_a_literal(text):
    assert resolve_argument("<${V}>", {"V": text}) == f"<{text}>"
    if not find_references(text):  # `{{.V}}` has no escape
        assert resolve_argument(text.replace("${", "$${"), {}) == text


@given(st.text("${}:-.env AB_1", max_size=20))
def test_resolving_needs_exactly_the_variables_that_a_text_names(text):
    try:
        server = ServerConfig(name="s", command="x", args=[text])
    except ValueError:
        assume(False)
    names = variables_of(server)
    resolve_variables(server, dict.fromkeys(names, "v"))
    for name in names:
        others = dict.fromkeys(names - {name}, "v")
        if f"{name}:-" not in text:
            with pytest.raises(ConfigError, match=f"the variable {name} is not set"):
                resolve_variables(server, others)


def test_who_asks_with_other_credentials_has_another_identity():
    def identify(environ, **entry):
        return resolve_variables(ServerConfig(name="s", **entry), environ).identity

    program = {"command": "x", "args": ["-v"], "env": {"TOKEN": "${A}"}}
    remote = {"url": "https://x/${A}", "headers": {"X-Key": "${A}"}, "transport": "http"}
    signed = {"url": "https://x/", "auth": BearerAuth(type="bearer", token=SecretStr("${A}")), "transport": "http"}
    found = {identify({"A": value}, **entry) for entry in (program, remote, signed) for value in ("one", "two")}
    assert len(found) == 6
    assert identify({"A": "one"}, **program) == identify({"A": "one", "B": "two"}, **program, timeouts={"call_s": 5.0})
    assert identify({"A": "one"}, **program) != identify({"A": "one"}, **{**program, "args": ["-q"]})


def test_a_secret_that_a_server_inherits_is_part_of_its_identity():
    resolved = resolve_variables(ServerConfig(name="s", command="x"), {})
    found = [
        replace(resolved, inherited=each).identity
        for each in ({}, {"HOME": "/a"}, {"API_TOKEN": "one"}, {"API_TOKEN": "two"})
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3
