"""One generation of what a worker is configured with: servers, policy and interceptors, loaded together.

Owns that they are taken or refused as one, and their version. How a running worker goes from one to the next is in
`reload`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tarsy_tasks.config import Config, find_config_path, load_config
from tarsy_tasks.config.watch import FileWatch
from tarsy_tasks.interceptors import Interceptor
from tarsy_tasks.policy import Policy, load_policy
from tarsy_tasks.settings import Settings, load_settings
from tarsy_tasks.telemetry.health_records import TakenConfiguration
from tarsy_tasks.worker.calls.chain import load_interceptors

__all__ = ["Generation", "load_generation", "watch_files"]

_VERSION_CHARS = 12


@dataclass(frozen=True)
class Generation:
    """What a worker is configured with. It does not change.

    Attributes:
        policy: What agents may do; None without a policy.
        interceptors: Those of the user, in the order of the configuration.
        version: The first characters of a digest: what says the same has the same version.
    """

    config: Config
    policy: Policy | None
    interceptors: Sequence[Interceptor]
    version: str

    def taken(self, settings: Settings, error: str | None = None) -> TakenConfiguration:
        """What health records say of it; `error` says why the one that was saved since was not taken."""
        is_for_all = self.policy is None and settings.signing_trusted is None
        return TakenConfiguration(self.version, error, lists_to_all=is_for_all)


def load_generation(before: Generation | None = None, path: Path | None = None) -> Generation:
    """What the files say now.

    Args:
        before: Its interceptors are kept, with what they remember, if the configuration names the same ones.
        path: The file of the configuration; None: see `find_config_path`.

    Raises:
        ConfigError: A file is missing or wrong; one line for each problem.
    """
    path = path or find_config_path()
    config, policy = load_config(path), load_policy(path)
    is_same = before is not None and before.config.interceptors == config.interceptors
    interceptors = before.interceptors if before is not None and is_same else load_interceptors(config.interceptors)
    said = [config.model_dump(mode="json"), policy.version if policy is not None else None]
    version = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:_VERSION_CHARS]
    return Generation(config, policy, interceptors, version)


def watch_files() -> FileWatch:
    """Watches the files that `load_generation` reads; made before it reads them, so that no change is missed. Raises
    `ConfigError` if there is no configuration."""
    named = load_settings().policy
    paths: list[Path] = [find_config_path(), *([named] if named is not None else [])]
    return FileWatch(paths)
