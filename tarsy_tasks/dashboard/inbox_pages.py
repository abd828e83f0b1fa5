"""The pages of the calls that wait for people, the form of one call, and their JSON.

Owns who may decide or answer on a page: who may use the other buttons, and who has the signed link of a call that one
person decides. Opening a page decides nothing; only its form does, with the token of the page. A worker checks and
writes the decision or the answers: Flower's Redis user may not.
"""

import base64
import json
import shlex
from typing import Any

from pydantic import SecretStr
from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.broker.input_rounds import Answered
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import TASK, ParkedCallView
from tarsy_tasks.dashboard.access import OwnRequests
from tarsy_tasks.dashboard.answer_form import build_form, read_form
from tarsy_tasks.dashboard.describe import describe_parked
from tarsy_tasks.dashboard.page_handlers import Data, Page
from tarsy_tasks.dashboard.reader import DashboardReader
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.approval_links import is_signed
from tarsy_tasks.telemetry.decision_texts import (
    ANSWER_TEXTS,
    DECISION_TEXTS,
    LONGEST_NAME,
    LONGEST_WHY,
    describe_sender,
)

__all__ = ["InboxData", "InboxPage", "ParkedPage"]

_ANSWER_S = 3.0
_DECISIONS = ("approve", "deny")
_ANSWERS = ("accept", "decline", "cancel")
_LONGEST_ANSWERS = 64 * 1024


class InboxPage(Page):
    @authenticated
    async def get(self) -> None:
        state, found = await self.reader.state(), None
        tasks: tuple[list[ParkedCallView], int] = ([], 0)
        if not state.outage:
            try:
                found, tasks = await self.reader.inbox(), await self.reader.server_tasks()
            except RedisError as error:
                state = self.with_outage(state, error)
        self.show("inbox", state, found=found, tasks=tasks, describe_sender=describe_sender, quoted=shlex.quote)


class InboxData(Data):
    @authenticated
    async def get(self) -> None:
        await self.state()
        with self.reading():
            views, total = await self.reader.inbox()
            tasks, all_tasks = await self.reader.server_tasks()
        calls, waiting = ([describe_parked(view) for view in each] for each in (views, tasks))
        self.write({"calls": calls, "parked": total, "tasks": waiting, "parked_tasks": all_tasks})


class ParkedPage(OwnRequests, Page):
    """One call, and the form that decides, or answers what its server asks."""

    def initialize(self, reader: DashboardReader, secret: SecretStr | None = None) -> None:
        super().initialize(reader)
        self._secret = secret

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
        words, what = (_ANSWERS, "answer") if view.reason == INPUT_REQUIRED else (_DECISIONS, "approve or deny")
        if word not in words or not by.strip() or len(by) > LONGEST_NAME or len(why) > LONGEST_WHY:
            raise HTTPError(400, f"Enter your name, and {what} the call.")
        if self.get_body_argument("digest", "") != view.digest:
            changed = DECISION_TEXTS[Decided.CHANGED] if words is _DECISIONS else ANSWER_TEXTS[Answered.CHANGED]
            await self._show_call(view, changed)
        elif words is _DECISIONS:
            said = await self._decide(view, is_approved=word == "approve", by=by, why=why)
            await self._show_call(await self._read(task_id) or view, said)
        else:
            said, unfit = await self._answer(view, word, by)
            await self._show_call(await self._read(task_id) or view, said, unfit)

    async def _show_call(self, view: ParkedCallView, said: str, unfit: str = "") -> None:
        state, may_decide = await self.reader.state(), self._may_decide(view) and not view.decision
        # Of other questions than those that the page had, nothing was entered.
        entered = self._entered if unfit and self.get_body_argument("digest", "") == view.digest else _nothing
        values: dict[str, Any] = {"each": view, "said": said, "user": self._user, "unfit": unfit}
        values |= {"form": build_form(view.about.get("questions", []), entered), "may_decide": may_decide}
        self.render_page("parked.html", view="inbox", state=state, **values)

    def _entered(self, key: str) -> list[str]:
        """What a person has entered into a field."""
        return self.get_body_arguments(key, strip=False)

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
        done, problem = await self._ask_worker(view, "mcp_decide", {"approve": is_approved, "by": by, "why": why})
        found = str(done.get("result"))
        return DECISION_TEXTS[Decided(found)] if found in set(Decided) else f"not decided: {problem}"

    async def _answer(self, view: ParkedCallView, word: str, by: str) -> tuple[str, str]:
        """What became of an answer, and why it does not fit, if so."""
        answers: Any = word
        if word == "accept":
            answers = read_form(build_form(view.about.get("questions", []), _nothing), self._entered)
            if len(json.dumps(answers)) > _LONGEST_ANSWERS:
                return "not answered", f"the answers have more than {_LONGEST_ANSWERS} characters"
        done, problem = await self._ask_worker(view, "mcp_answer", {"answers": answers, "by": by})
        found = str(done.get("result"))
        if found in set(Answered):
            return ANSWER_TEXTS[Answered(found)], ""
        if unfit := str(done.get("unfit") or ""):
            return "not answered: the answer does not fit", unfit
        return f"not answered: {problem}", ""

    async def _ask_worker(
        self, view: ParkedCallView, command: str, arguments: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """What a worker has done about a call, and what went wrong if it has done nothing."""
        state = await self.reader.state()
        server = state.snapshot.servers.get(str(view.about.get("server"))) if state.snapshot else None
        worker = min((record.worker for record in server.records), default=None) if server else None
        if worker is None:
            raise HTTPError(409, "No worker serves this MCP server now, so nothing was decided. Start one first.")
        replies: Any = await self.application.blocking_runner.run(
            "mcp",
            view.id,
            self.capp.control.broadcast,
            command,
            arguments={"call": view.id, "digest": view.digest, **arguments},
            destination=[worker],
            reply=True,
            timeout=_ANSWER_S,
            limit=1,
            connection_errors=(),
        )
        reply: dict[str, Any] = next((each.get(worker) for each in replies or ()), None) or {}
        problem = reply.get("error") or f"the worker did not answer within {_ANSWER_S:g} s"
        return reply.get("ok") or {}, str(problem)


def _nothing(_: str) -> list[str]:
    """What is entered into a new form."""
    return []
