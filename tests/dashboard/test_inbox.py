"""Calls that wait for an approval: the webhook's signed link, the page that it opens, and the inbox."""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tests.chromium import Page
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.dashboard.conftest import StartFlower
from tests.dashboard.visitor import Visitor
from tests.faults.ledger import Ledger, witness
from tests.processes import Flower, Worker, wait_until
from tests.servers.webhook_receiver import Receiver, receiver

OpenPage = Callable[..., Page]
SECRET = "a secret of workers and Flower"
BASE = "https://flower.example.com/ops"
TIMEOUT_S = 40


@pytest.fixture(scope="module")
def hook() -> Iterator[Receiver]:
    with receiver(204) as server:
        yield server


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, ledger: Ledger, hook: Receiver) -> Worker:
    servers = {
        "desk": witness(ledger, approval="always"),
        "strict": witness(ledger, approval={"default": "always", "approvers": 2}),
    }
    environment = {
        "TARSY_APPROVAL_WEBHOOK": hook.url,
        "TARSY_APPROVAL_SECRET": SECRET,
        "TARSY_DASHBOARD_URL": f"{BASE}/",
    }
    return start_worker(servers, environment=environment)


@pytest.fixture(scope="module")
def flower(start_flower: StartFlower, worker: Worker) -> Flower:
    return start_flower(TARSY_APPROVAL_SECRET=SECRET, FLOWER_BASIC_AUTH="ann:one,bob:two")


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as found:
        yield found


def wait_for_request(hook: Receiver, pending: PendingCall) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        return next(
            (each for each in (json.loads(body) for _, body in hook.received) if each["id"] == pending.id), None
        )

    wait_until(lambda: pending.parked, "it is parked", TIMEOUT_S)
    return wait_until(find, "the webhook gets it") or {}


def open_link(flower: Flower, link: str) -> Visitor:
    assert link.startswith(f"{BASE}/mcp/inbox/")
    return Visitor(f"{flower.url}{link.removeprefix(BASE)}")


def test_a_link_opens_a_page_and_only_its_form_decides(
    tools: ToolExecutor, hook: Receiver, flower: Flower, ledger: Ledger
) -> None:
    pending = tools.submit("desk.add", {"key": "linked"})
    asked = wait_for_request(hook, pending)
    assert (asked["type"], asked["server"], asked["tool"], asked["agent_id"]) == ("call.parked", "desk", "add", "sre")
    assert "waits for approval, for sre (not verified)." in asked["text"]
    assert asked["arguments"] == '{"key":"linked"}'
    headers, body = next(each for each in hook.received if json.loads(each[1])["id"] == pending.id)
    signed = f"{pending.id}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"

    visitor = open_link(flower, asked["url"])
    for _ in range(2):  # a link preview, and then a person
        status, page = visitor.get()
        assert (status, "desk.add" in page, "Approve" in page) == (200, True, True)
    shown = re.search(r'name="digest" value="(\w+)"', page)
    assert shown is not None
    form = {"decision": "approve", "name": "bot", "_xsrf": "0123", "digest": shown[1]}
    assert [visitor.preview(method, **form) for method in ("GET", "HEAD", "OPTIONS")] == [200, 405, 204]
    assert not pending.done()
    assert visitor.decide("approve", token="4567", name="eve")[0] == 403, "the token of another page"
    assert visitor.decide("approve", name=" ")[0] == 400
    assert visitor.decide("perhaps", name="eve")[0] == 400
    assert "the call has changed" in visitor.decide("approve", digest="0" * 64, name="eve")[1]
    assert not pending.done()
    assert "<strong>approved</strong>" in visitor.decide("approve", name="eve <b>")[1]
    assert pending.result().outcome is Outcome.OK
    status, page = visitor.get()
    assert (status, "Decided before: approved" in page, "<form" in page) == (200, True, False)
    replayed = visitor.decide("deny", name="eve", digest=shown[1])[1]
    assert "it was decided before" in replayed
    assert ledger.runs("add")["linked"] == 1


def test_a_link_is_for_one_question_and_nobody_guesses_it(tools: ToolExecutor, hook: Receiver, flower: Flower) -> None:
    first, second = (tools.submit("desk.add", {"key": key}) for key in ("one", "other"))
    link = wait_for_request(hook, first)["url"]
    wait_for_request(hook, second)
    signature = link.partition("?")[2]
    for path in (f"{second.id}?{signature}", f"{first.id}?signature=%C3%A9", first.id, "nothing"):
        visitor = open_link(flower, f"{BASE}/mcp/inbox/{path}")
        assert visitor.get()[0] == 401
        assert visitor.decide("approve", name="eve")[0] == 401
    ann = Visitor(f"{flower.url}/mcp/inbox/{first.id}", "ann:one")
    assert "denied" in ann.decide("deny", why="not today", name="somebody else")[1]
    assert "was denied by ann: not today" in first.result().content
    assert Visitor(f"{flower.url}/mcp/inbox/nothing", "ann:one").get()[0] == 404
    assert "approved" in Visitor(f"{flower.url}/mcp/inbox/{second.id}", "bob:two").decide("approve")[1]
    assert second.result().outcome is Outcome.OK


def test_where_two_people_have_to_approve_each_signs_in(tools: ToolExecutor, hook: Receiver, flower: Flower) -> None:
    pending = tools.submit("strict.add", {"key": "four eyes"})
    link = wait_for_request(hook, pending)["url"]
    assert open_link(flower, link).get()[0] == 401
    address = f"{flower.url}/mcp/inbox/{pending.id}"
    ann, bob = Visitor(address, "ann:one"), Visitor(address, "bob:two")
    for said in ("another person has to approve it, too", "you have approved it before"):
        assert said in ann.decide("approve", name="not ann")[1]
    assert not pending.done()
    assert "approved" in bob.decide("approve")[1]
    assert pending.result().outcome is Outcome.OK


def test_the_inbox_lists_what_waits(tools: ToolExecutor, flower: Flower, open_page: OpenPage, redis_url: str) -> None:
    pending = tools.submit("desk.add", {"key": "listed"})
    wait_until(lambda: pending.parked, "it is parked", TIMEOUT_S)
    status, text = Visitor(f"{flower.url}/mcp/api/inbox", "ann:one").get()
    [listed] = json.loads(text)["calls"]
    assert (status, listed["id"], listed["tool"], listed["approvers"]) == (200, pending.id, "add", 1)
    page = open_page(f"{flower.url}/mcp/inbox", http_credentials={"username": "ann", "password": "one"})
    page.get_by_role("link", name="desk.add").click()
    page.get_by_text("You decide as ann.").wait_for()
    page.get_by_label("Reason").fill("no need")
    page.get_by_role("button", name="Deny").click()
    page.locator("#mcp-said", has_text="denied").wait_for()
    assert pending.result().error_code is ErrorCode.APPROVAL_DENIED
    page.get_by_role("link", name="Inbox").first.click()
    page.get_by_text("No calls wait for people.").wait_for()
    with redis.Redis.from_url(redis_url) as client:
        assert not client.acl_log()


def test_nobody_who_decides_sees_a_secret(
    tools: ToolExecutor, hook: Receiver, flower: Flower, worker: Worker, redis_url: str
) -> None:
    secret = "ghp_" + "4fJk29sLqPzXw8RtYb71" * 2
    pending = tools.submit("desk.add", {"key": f"the text before, and token={secret}"})
    asked = wait_for_request(hook, pending)
    seen = [body.decode() for _, body in hook.received]
    paths = (f"mcp/inbox/{pending.id}", "mcp/inbox", "mcp/api/inbox", f"mcp/calls/{pending.id}")
    seen += [Visitor(f"{flower.url}/{path}", "ann:one").get()[1] for path in paths]
    seen += [run_command("inbox", *more, environment=worker.environment).stdout for more in ([], ["--json"])]
    with redis.Redis.from_url(redis_url) as client:
        seen += [str(client.hgetall(keys.parked_key(pending.id))), str(client.get(keys.result_key(pending.id)))]
    assert not [each for each in [*seen, worker.log] if secret[:20] in each]
    assert "the text before" in asked["arguments"]
    assert sum("the text before" in each for each in seen) >= 7
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED


def test_celery_has_an_event_without_arguments(tools: ToolExecutor, redis_url: str) -> None:
    seen: list[dict[str, Any]] = []
    with Celery("listener", broker=redis_url, set_as_current=False) as app, app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"worker-mcp-parked": seen.append})
        events = receiver.itercapture(limit=None, timeout=TIMEOUT_S, wakeup=False)
        next(events)  # a heartbeat: it listens
        pending = tools.submit("desk.add", {"key": "t0psecret"})
        while not seen:
            next(events)
        events.close()
    assert (seen[0]["uuid"], seen[0]["server"], seen[0]["tool"], seen[0]["approvers"]) == (pending.id, "desk", "add", 1)
    assert "t0psecret" not in str(seen)
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: not client.exists(keys.PARKED), "what was withdrawn is forgotten", TIMEOUT_S)
