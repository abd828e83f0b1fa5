"""What is sent of a call that waits for an approval: a Celery event, and a request of the webhook.

Owns both shapes. All texts in them are masked; only a request has arguments, and the link to the dashboard.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tarsy_tasks.broker.parked_calls import Parking
from tarsy_tasks.settings import Settings
from tarsy_tasks.telemetry.approval_links import build_link
from tarsy_tasks.telemetry.decision_texts import describe_sender

__all__ = ["APPROVAL", "ApprovalRequest"]

APPROVAL = "approval"
"""Why such a call is parked."""


class ApprovalRequest(BaseModel):
    """A call that waits for an approval.

    Attributes:
        id: The task id.
        arguments: Masked and cut.
        expires_at: Until when it waits, in seconds since the epoch by the clock of Redis.
        approvers: How many people have to approve it.
        url: The page that shows it; empty without `TARSY_DASHBOARD_URL` and `TARSY_APPROVAL_SECRET`.
    """

    model_config = ConfigDict(frozen=True)

    v: Literal[1] = 1
    id: str
    server: str
    tool: str
    arguments: str = ""
    agent_id: str = ""
    run_id: str = ""
    principal: str = ""
    expires_at: float
    approvers: int
    url: str = ""

    @classmethod
    def of(cls, task_id: str, parking: Parking, settings: Settings) -> "ApprovalRequest":
        """The request for a call that is being parked."""
        about: dict[str, Any] = json.loads(parking.record["about"])
        named = {name: about[name] for name in cls.model_fields if name in about}
        base, secret, url = settings.dashboard_url, settings.approval_secret, ""
        if base is not None and secret is not None:
            url = build_link(base, secret.get_secret_value(), task_id, parking.record["digest"])
        until = round(parking.until, 3)
        return cls(**named, id=task_id, expires_at=until, approvers=parking.record["needs"], url=url)

    @property
    def kind(self) -> str:
        """As in a `webhook.Notice`."""
        return "a request for approval"

    def as_event(self) -> dict[str, Any]:
        """The body of a request."""
        text = f"{self} {self.url}" if self.url else str(self)
        return {"type": "call.parked", "text": text, **self.model_dump(mode="json")}

    def __str__(self) -> str:
        """A sentence for people."""
        who = describe_sender(self.principal, self.agent_id)
        return f"{self.server}.{self.tool} waits for approval{f', for {who}' if who else ''}."
