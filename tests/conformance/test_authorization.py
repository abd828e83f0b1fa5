"""MCP's own conformance suite, its scenarios about authorization: an operator signs in, and calls go through the queue
and a worker.

The suite runs all scenarios of a specification at once. Each has an MCP server and an authorization server that
approves every sign-in by itself, so `tarsy-tasks auth login` needs a browser, but no person.
"""

import json
import os
import re
import subprocess
from base64 import b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tarsy_tasks import ToolExecutor
from tests.cli.browser import BROWSER
from tests.cli.commands import run_command
from tests.npm import conformance_suite
from tests.plants import know
from tests.processes import Worker, environment_of, wait_until

HERE = Path(__file__).parent
BOTH = [
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/scope-retry-limit",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
]
REQUIRED = {
    "2025-11-25": BOTH,
    "2026-07-28": [
        *BOTH,
        "auth/resource-mismatch",
        "auth/offline-access-scope",
        "auth/offline-access-not-supported",
        "auth/authorization-server-migration",
        "auth/iss-supported",
        "auth/iss-not-advertised",
        "auth/iss-supported-missing",
        "auth/iss-wrong-issuer",
        "auth/iss-unexpected",
        "auth/iss-normalized",
        "auth/metadata-issuer-mismatch",
    ],
}
EXTENSIONS = [
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
]
"""Of no specification."""
DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client id that the suite expects where it takes client id metadata documents."""
KEY = know("the key of tokens in the conformance suite", b64encode(b"for the suite, 32 bytes are here").decode())
MOST_SIGN_INS = 3
AT_ONCE = 4
COMMAND = re.compile(r"`tarsy-tasks auth login \S+((?: --scope [^\s`]+)*)`")


def load_expected() -> dict[str, str]:
    return yaml.safe_load((HERE / "expected-authorization-failures.yaml").read_text())


def name_of(scenario: str) -> str:
    return scenario.replace("/", "-")


class Run:
    """All scenarios of one specification, and those of no specification.

    Attributes:
        checks: What the suite found in each.
    """

    def __init__(self, version: str, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.scenarios = [*REQUIRED[version], *EXTENSIONS]
        for scenario in self.scenarios:
            (folder / scenario).mkdir(parents=True)
            os.mkfifo(folder / scenario / "done")
        suite, _ = conformance_suite()
        # A scenario that has no folder here ends at once.
        command = [*suite, "client", "--command", f"sh {HERE / 'hand_over.sh'} {folder}/$MCP_CONFORMANCE_SCENARIO"]
        command += ["--requirements", version, "--timeout", "300000", "--output-dir", str(folder / "results")]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            ready = [folder / scenario / "ready" for scenario in self.scenarios]
            wait_until(lambda: all(each.exists() for each in ready), "the servers of all scenarios run", 60)
            servers = {name_of(scenario): self.entry(scenario) for scenario in self.scenarios}
            environment = {"TARSY_TOKEN_KEY": KEY}
            with Worker(folder / "worker", servers, redis_url, environment=environment) as worker:
                self.take_part(worker)
            for scenario in self.scenarios:
                with suppress(OSError):  # nobody waits there any more
                    os.close(os.open(folder / scenario / "done", os.O_WRONLY | os.O_NONBLOCK))
            process.wait(60)
        finally:
            process.kill()
            process.wait()
        self.checks = {scenario: self.load_checks(scenario) for scenario in self.scenarios}

    def entry(self, scenario: str) -> dict[str, Any]:
        """What an operator configures, with what the suite says that he knows."""
        url = (self.folder / scenario / "ready").read_text()
        context = (self.folder / scenario / "context").read_text()
        known: dict[str, Any] = json.loads(context) if context else {}
        auth: dict[str, Any] = {"type": "oauth", "client_metadata_url": DOCUMENT}
        if scenario.startswith("auth/client-credentials"):
            with urlopen(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")) as metadata:
                issuer = json.load(metadata)["authorization_servers"][0]
            proof = {"client_secret": "client_secret", "private_key": "private_key_pem"}
            auth = {"type": "oauth_client_credentials", "issuer": issuer, "client_id": known["client_id"]}
            auth |= {key: known[each] for key, each in proof.items() if each in known}
        elif scenario == "auth/pre-registration":
            auth = {"type": "oauth", **{key: known[key] for key in ("client_id", "client_secret", "issuer")}}
        return {"url": url, "auth": auth, "timeouts": {"recreate_s": 1}}

    def take_part(self, worker: Worker) -> None:
        """Sign in, and call a tool of each server. Where the error says that somebody has to sign in, do that."""
        worker.wait_until_ready()
        left = {name_of(scenario): "" for scenario in self.scenarios}
        with environment_of(worker), ToolExecutor(timeout_s=30) as tools, ThreadPoolExecutor(AT_ONCE) as operators:
            for _ in range(MOST_SIGN_INS):
                done = operators.map(sign_in, [worker] * len(left), left, left.values())
                signed_in = {name for name, is_done in zip(left, done, strict=True) if is_done}
                results = tools.execute_many([(f"{name}.test-tool", {}) for name in left])
                said = {name: COMMAND.search(result.content) for name, result in zip(left, results, strict=True)}
                left = {name: found[1] for name, found in said.items() if found is not None and name in signed_in}

    def load_checks(self, scenario: str) -> list[Mapping[str, Any]]:
        (path,) = (self.folder / "results").glob(f"{scenario}-2*/checks.json")
        return json.loads(path.read_text())


def sign_in(worker: Worker, name: str, options: str) -> bool:
    """Whether it succeeds."""
    environment = {**worker.environment, "BROWSER": BROWSER}
    return run_command("auth", "login", name, *options.split(), environment=environment).returncode == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Callable[[str], Run]:
    @cache
    def run(version: str) -> Run:
        return Run(version, tmp_path_factory.mktemp("suite"), redis_url)

    return run


@pytest.mark.parametrize("version", REQUIRED)
def test_these_are_the_scenarios_of_authorization(version: str) -> None:
    _, requirements = conformance_suite()
    listed = yaml.safe_load((requirements / f"{version}.yaml").read_text())
    assert REQUIRED[version] == [name for name in listed["client"] if name.startswith("auth/")]
    others = [each["scenario"] for each in listed["not_scored"]]
    assert [name for name in others if name.startswith("auth/")] == EXTENSIONS
    assert load_expected().keys() <= {*EXTENSIONS}


@pytest.mark.parametrize(
    ("version", "scenario"), [(version, each) for version in REQUIRED for each in [*REQUIRED[version], *EXTENSIONS]]
)
def test_the_suite_is_content(runs: Callable[[str], Run], version: str, scenario: str) -> None:
    checks = runs(version).checks[scenario]
    problems = [each for each in checks if each["status"] in ("FAILURE", "WARNING")]
    if scenario in load_expected():
        assert problems, "it passes: remove it from expected-authorization-failures.yaml"
    else:
        assert not problems
        assert any(each["status"] == "SUCCESS" for each in checks)
