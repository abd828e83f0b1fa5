"""The URIs that templates become: values that agents choose lead nowhere else, and take no time."""

import subprocess
import sys
from typing import Any

import pytest

from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.worker.calls.uri_templates import expand_template

_ENDLESS = """
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.worker.calls.uri_templates import expand_template

names = [f"v{number}" for number in range(12)]
values = dict.fromkeys(names, "a" * 40) | {names[-1]: "_"}
try:
    expand_template("http://" + "a".join(f"{{{name}}}" for name in names) + ".example/", values)
except ArgumentsError as error:
    assert "another origin" in error.text, error.text
    print("refused")
"""


@pytest.mark.parametrize(
    ("template", "values", "uri"),
    [
        ("https://{shop}.example/{item}", {"shop": "a-1", "item": "x/y"}, "https://a-1.example/x%2Fy"),
        ("https://{a}-{b}.{c}.example", {"a": "1", "b": "2", "c": "3"}, "https://1-2.3.example"),
        ("https://shop.example:8080{/path*}", {"path": ["a", "b"]}, "https://shop.example:8080/a/b"),
        ("https://shop.example{+path}", {"path": "/a/b"}, "https://shop.example/a/b"),
        ("https://shop.example{?q,page}", {"q": "x"}, "https://shop.example?q=x"),
        ("docs://{name}/x", {"name": "any thing"}, "docs://any%20thing/x"),
    ],
)
def test_values_take_their_places(template: str, values: dict[str, Any], uri: str) -> None:
    assert expand_template(template, values) == uri


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("https://{host}/", {"host": "elsewhere"}),
        ("{scheme}://shop.example/", {"scheme": "file"}),
        ("https://shop.example{+path}", {"path": ".elsewhere.example/"}),
        ("https://shop.example{+path}", {"path": "@elsewhere.example/"}),
        ("https://{shop}.example/", {"shop": "elsewhere.example/"}),
        ("https://{shop}.example/", {"shop": "a.b"}),
        ("https://{shop}.example/", {"shop": ""}),
        ("https://shop{.zone}/", {"zone": "elsewhere"}),
        ("https://{a}.example/", {"a": ["b", "c"]}),
    ],
)
def test_no_value_leads_to_another_origin(template: str, values: dict[str, Any]) -> None:
    with pytest.raises(ArgumentsError, match="another origin"):
        expand_template(template, values)


def test_the_host_is_checked_in_no_time() -> None:
    """In a process that can be ended: all calls of a worker would wait for it."""
    done = subprocess.run([sys.executable, "-c", _ENDLESS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.parametrize("value", ["x" * 9000, ["x"] * 9000])
def test_long_values_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentsError, match="more than 8192 characters"):
        expand_template("book://{/x*}", {"x": value})
