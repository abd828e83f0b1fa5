"""Links by which a person opens the page of one call that waits for an approval.

Owns the signature: a link opens the page of the question that it was made for, and of no other call or arguments. That
a link is opened decides nothing.
"""

import hashlib
import hmac
from urllib.parse import quote

__all__ = ["build_link", "is_signed"]


def build_link(dashboard_url: str, secret: str, task_id: str, digest: str) -> str:
    """The address of the page of a call.

    Args:
        dashboard_url: Where Flower is, for a browser.
        secret: The one that workers and Flower share.
        digest: Of what is asked.
    """
    return f"{dashboard_url.rstrip('/')}/mcp/inbox/{quote(task_id, safe='')}?signature={_sign(secret, task_id, digest)}"


def is_signed(signature: str, secret: str, task_id: str, digest: str) -> bool:
    """Whether the signature of a link is one for this question."""
    return hmac.compare_digest(signature.encode(), _sign(secret, task_id, digest).encode())


def _sign(secret: str, task_id: str, digest: str) -> str:
    text = f"tarsy-tasks approval\n{task_id}\n{digest}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
