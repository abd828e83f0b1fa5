"""The pages of the calls that wait for people, the form of one call, and their JSON.

Owns who may decide on a page: who may use the other buttons, and who has the signed link of a call that one person
decides. Opening a page decides nothing; only its form does, with the token of the page. A worker writes the decision:
Flower's Redis user may not.
"""

import base64
from typing import Any

from pydantic import SecretStr
from redis.exceptions import RedisError
from tornado.web import HTTPError, RequestHandler, authenticated

from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import TASK, ParkedCallView
from tarsy_tasks.dashboard.describe import describe_parked
from tarsy_tasks.dashboard.page_handlers import Data, Page
from tarsy_tasks.dashboard.reader import DashboardReader
from tarsy_tasks.telemetry.approval_links import is_signed
from tarsy_tasks.telemetry.decision_texts import DECISION_TEXTS, LONGEST_NAME, LONGEST_WHY, describe_sender

__all__ = ["InboxData", "InboxPage", "ParkedPage"]

_ANSWER_S = 3.0


class InboxPage(Page):
    @authenticated
    async def get(self) -> None:
        state, found, tasks = await self.reader.state(), None, []
        if not state.outage:
            try:
                found, tasks = await self.reader.inbox(), await self.reader.server_tasks()
            except RedisError as error:
                state = self.with_outage(state, error)
        self.show("inbox", state, found=found, tasks=tasks, describe_sender=describe_sender)


class InboxData(Data):
    @authenticated
    async def get(self) -> None:
        await self.state()
        with self.reading():
            views, total = await self.reader.inbox()
            tasks = await self.reader.server_tasks()
        calls, waiting = ([describe_parked(view) for view in each] for each in (views, tasks))
        self.write({"calls": calls, "tasks": waiting, "parked": total})


class ParkedPage(Page):
    """One call, and the form that decides."""

    def initialize(self, reader: DashboardReader, secret: SecretStr | None = None) -> None:
        super().initialize(reader)
        self._secret = secret

    def check_xsrf_cookie(self) -> None:
        """Also where Flower does not: without authentication and with basic authentication."""
        super().check_xsrf_cookie()
        RequestHandler.check_xsrf_cookie(self)

    async def get(self, task_id: str) -> None:
        view = await self._find(task_id)
        if view is not None:
            await self._show_call(view, f"Decided before: {view.decision}." if view.decision else "")

    async def post(self, task_id: str) -> None:
        view = await self._find(task_id)
        if view is None:
            return
        if not self._may_decide(view):
            raise HTTPError(403, "You are not allowed to decide this.")
        word, why = self.get_body_argument("decision", ""), self.get_body_argument("why", "")
        by = self._user or self.get_body_argument("name", "")
        if word not in ("approve", "deny") or not by.strip() or len(by) > LONGEST_NAME or len(why) > LONGEST_WHY:
            raise HTTPError(400, "Enter your name, and approve or deny the call.")
        if self.get_body_argument("digest", "") != view.digest:
            await self._show_call(view, DECISION_TEXTS[Decided.CHANGED])
            return
        said = await self._decide(view, is_approved=word == "approve", by=by, why=why)
        await self._show_call(await self._read(task_id) or view, said)

    async def _show_call(self, view: ParkedCallView, said: str) -> None:
        state, may_decide = await self.reader.state(), self._may_decide(view) and not view.decision
        may_decide = may_decide and view.reason == "approval"
        values: dict[str, Any] = {"each": view, "said": said, "user": self._user, "may_decide": may_decide}
        self.render_page("parked.html", view="inbox", state=state, **values)

    async def _find(self, task_id: str) -> ParkedCallView | None:
        """The call, for who may see it; None if another answer was given."""
        view = await self._read(task_id)
        if view is not None and self._is_linked(view):
            try:
                _ = self.current_user
            except HTTPError:
                self.current_user = None  # the link is enough
        else:
            self._require_user()
            if self._finished:  # sent to the sign-in
                return None
        if view is None:
            raise HTTPError(404, "No call with this id waits for people.")
        return view

    async def _read(self, task_id: str) -> ParkedCallView | None:
        try:
            view = await self.reader.parked(task_id)
        except (RedisError, OSError) as error:
            raise HTTPError(503, "Redis cannot be read, so nothing was decided.") from error
        return view if view is not None and view.reason != TASK else None  # of a task, people decide nothing

    @authenticated
    def _require_user(self) -> None:
        """Who is not signed in is refused here, or sent to the sign-in."""

    def _is_linked(self, view: ParkedCallView) -> bool:
        """Whether the address is that of a link which a worker has signed. If several people have to approve a call,
        each signs in: a link may be passed on."""
        secret = self._secret
        signature = self.get_query_argument("signature", "")
        return (
            view.needs == 1
            and view.reason == "approval"
            and secret is not None
            and is_signed(signature, secret.get_secret_value(), view.id, view.digest)
        )

    def _may_decide(self, view: ParkedCallView) -> bool:
        return not self.application.options.read_only and (self._is_linked(view) or self.may_act)

    @property
    def _user(self) -> str:
        """Who is signed in, if that is one person: a link with a token is for everybody."""
        options = self.application.options
        if not self.current_user:
            return ""
        if options.basic_auth:
            kind, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
            return base64.b64decode(credentials).decode().partition(":")[0] if kind == "Basic" else ""
        is_shared = not options.auth or bool(getattr(self.application, "token", ""))
        return "" if is_shared else str(self.current_user or "")

    async def _decide(self, view: ParkedCallView, *, is_approved: bool, by: str, why: str) -> str:
        state = await self.reader.state()
        server = state.snapshot.servers.get(str(view.about.get("server"))) if state.snapshot else None
        worker = min((record.worker for record in server.records), default=None) if server else None
        if worker is None:
            raise HTTPError(409, "No worker serves this MCP server now, so nothing was decided. Start one first.")
        arguments = {"call": view.id, "digest": view.digest, "approve": is_approved, "by": by, "why": why}
        answers: Any = await self.application.blocking_runner.run(
            "mcp",
            view.id,
            self.capp.control.broadcast,
            "mcp_decide",
            arguments=arguments,
            destination=[worker],
            reply=True,
            timeout=_ANSWER_S,
            limit=1,
            connection_errors=(),
        )
        answer: dict[str, Any] = next((each.get(worker) for each in answers or ()), None) or {}
        done: dict[str, Any] = answer.get("ok") or {}
        found = str(done.get("result"))
        if found not in set(Decided):
            return f"not decided: {answer.get('error') or f'the worker did not answer within {_ANSWER_S:g} s'}"
        return DECISION_TEXTS[Decided(found)]
