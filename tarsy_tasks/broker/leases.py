"""The leases that this process has to renew.

Owns the list: the worker's `lease` renews what is on it. It outlives channels and connections, as the calls do.
"""

from tarsy_tasks.broker.delivery import Delivery

__all__ = ["hold_lease", "leased", "release_lease"]

leased: dict[str, Delivery] = {}
"""What this process took and has neither answered nor requeued, by the names of the deliveries."""


def hold_lease(delivery: Delivery) -> None:
    """Renew the lease of a message from now on."""
    leased[delivery.name] = delivery


def release_lease(delivery: Delivery) -> None:
    """Stop renewing the lease of a message."""
    leased.pop(delivery.name, None)
