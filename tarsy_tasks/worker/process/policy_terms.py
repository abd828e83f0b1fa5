"""What the parts of a worker have to know of a policy that do not ask it for each call.

Owns building it: the limits for the script that fetches calls, and the report of them for operators.
"""

import logging
from collections.abc import Collection, Sequence
from typing import Any

from tarsy_tasks.broker.limit_counters import limit_fetch
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.policy import Policy
from tarsy_tasks.telemetry.limit_report import build_report

__all__ = ["build_fetch_limits", "build_limit_report", "weights_of"]

logger = logging.getLogger(__name__)


def weights_of(policy: Policy | None) -> dict[str, float]:
    """The shares of agents beside each other."""
    return policy.weights if policy is not None else {}


def build_limit_report(policy: Policy | None, servers: Collection[str]) -> str:
    """For operators; empty if there are no limits. `servers` are those that are enabled."""
    return build_report(policy.limits, policy.version, servers) if policy is not None and policy.limits else ""


def build_fetch_limits(
    policy: Policy | None, conf: Any, servers: Sequence[str], lease_s: float, *, is_bound: bool
) -> str:
    """What the fetch has to know of limits; empty if there are none that it could keep to.

    Args:
        conf: Celery's settings.
        servers: The ones that the worker serves.
        lease_s: How long a lease lasts.
        is_bound: Agents are bound.
    """
    if policy is None or policy.limits is None:
        return ""
    counted = [limit.place for limit in policy.limits.all if limit.rule.bytes_per_day]
    if counted and conf.broker_url != conf.result_backend:
        text = "the bytes of results are not counted, because they are not in the broker's Redis database: %s"
        logger.warning(text, ", ".join(counted))
    # In the queue that all share, only a signature says who sent a message.
    anonymous = ANONYMOUS if conf.accept_content == ["json"] else None
    terms = policy.limits.build_fetch_terms(servers, anonymous)
    if not is_bound:
        terms = {server: [each for each in found if each["shared"]] for server, found in terms.items()}
    return limit_fetch(terms, lease_s, ANONYMOUS) if any(terms.values()) else ""
