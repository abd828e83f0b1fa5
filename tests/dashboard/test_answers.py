"""People answer what servers ask on a page: its form, what it refuses, who may send it, and what it never shows."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import TIMEOUT_S, curious_server
from tests.chromium import Page
from tests.conftest import StartWorker
from tests.dashboard.conftest import StartFlower
from tests.dashboard.visitor import Visitor
from tests.faults.ledger import Ledger
from tests.processes import Flower, Worker, wait_until

OpenPage = Callable[..., Page]
CONTRASTS = (Path(__file__).parent / "contrast.js").read_text()
ANN = {"username": "ann", "password": "one"}
SECRET = "s3cret-answer-0123456789"


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory) -> Worker:
    """With all that kombu hears in its log."""
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger")
    servers = {"shop": curious_server(ledger), "old": curious_server(ledger, "--handshake")}
    return start_worker(servers, arguments=["-l", "DEBUG"])


@pytest.fixture(scope="module")
def flower(start_flower: StartFlower, worker: Worker) -> Flower:
    assert worker.pid
    return start_flower(FLOWER_BASIC_AUTH="ann:one,bob:two")


@pytest.fixture
def tools(worker: Worker, table: Any) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as found:
        yield found
        wait_until(lambda: not table.exists(keys.PARKED), "nothing waits any more", TIMEOUT_S)


def ask(tools: ToolExecutor, name: str, **arguments: str) -> PendingCall:
    pending = tools.submit(name, arguments)
    assert pending.questions()
    return pending


def address_of(flower: Flower, pending: PendingCall) -> str:
    return f"{flower.url}/mcp/inbox/{pending.id}"


def send(page: Page, button: str = "Send answer") -> None:
    page.get_by_role("button", name=button).click()
    page.locator("#mcp-said", has_text="answered; the call goes on").wait_for()


def test_a_form_is_answered_on_its_page(tools: ToolExecutor, flower: Flower, open_page: OpenPage, table: Any) -> None:
    pending = ask(tools, "shop.order", key="shoes")
    page = open_page(f"{flower.url}/mcp/inbox", http_credentials=ANN)
    page.get_by_text("Which size for shoes?").wait_for()
    page.get_by_role("link", name="shop.order").click()
    page.get_by_text("You answer as ann.").wait_for()
    assert page.get_by_label("Size").get_attribute("type") == "number"
    assert "default: red" in page.locator(".mcp-answer").inner_text()
    page.get_by_role("button", name="Send answer").click()
    assert page.locator(":invalid").count(), "the browser asks for what is missing"
    page.get_by_label("Size").fill("11")
    page.get_by_label("Color").fill("blue <b>")
    page.get_by_role("button", name="Send answer").click()
    page.locator("#mcp-unfit", has_text="`size`: expected an integer, at least 1, at most 10, got").wait_for()
    assert page.get_by_label("Size").input_value() == "11"
    assert page.get_by_label("Color").input_value() == "blue <b>"
    assert not pending.done()
    page.get_by_label("Size").fill("5")
    page.get_by_label("Color").fill("")
    send(page)
    assert pending.result().content == "shoes: 5 red"
    assert only_entry(table, pending.id).input == "1 round, answered by ann"


def test_each_kind_of_field_has_its_control(tools: ToolExecutor, flower: Flower, open_page: OpenPage) -> None:
    pending = ask(tools, "shop.enroll")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    assert "As in your passport." in page.locator(".mcp-answer").inner_text()
    page.get_by_label("Full name").fill("Ann")
    page.get_by_label("weight").fill("1.5")
    page.get_by_label("email").fill("ann@example.com")
    assert page.get_by_label("member").locator("option").all_inner_texts() == ["yes (default)", "yes", "no"]
    page.get_by_label("member").select_option(label="no")
    page.get_by_label("size").select_option(label="medium")
    page.get_by_label("color").select_option(label="Green")
    page.get_by_label("days").select_option(label=["sat", "sun"])
    send(page)
    wanted = {"name": "Ann", "weight": 1.5, "email": "ann@example.com", "member": False, "size": "m"}
    found = json.loads(pending.result().content)
    assert found == {"action": "accept", **wanted, "color": "#0f0", "days": ["sat", "sun"]}


def test_what_is_left_empty_is_not_sent(tools: ToolExecutor, flower: Flower, open_page: OpenPage) -> None:
    pending = ask(tools, "shop.enroll")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    page.get_by_label("Full name").fill("Ann")
    send(page)
    assert json.loads(pending.result().content) == {"action": "accept", "name": "Ann", "member": True}


def test_a_server_that_asks_again_gets_the_next_form(tools: ToolExecutor, flower: Flower, open_page: OpenPage) -> None:
    pending = ask(tools, "shop.survey", key="x")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    page.get_by_label("name", exact=True).fill("Ann")
    page.get_by_label("age", exact=True).fill("4")
    send(page)
    wait_until(lambda: len(pending.questions()) == 1, "it asks again", TIMEOUT_S)
    page.goto(address_of(flower, pending))
    page.get_by_label("sure").select_option(label="yes")
    send(page)
    assert "'sure': True" in pending.result().content


def test_a_session_that_waits_is_answered_too(tools: ToolExecutor, flower: Flower, table: Any) -> None:
    pending = ask(tools, "old.order", key="held")
    said = Visitor(address_of(flower, pending), "bob:two").decide("accept", **{"answer.0.0": "3"})[1]
    assert "answered; the call goes on" in said
    assert pending.result().content == "held: 3 red"
    assert only_entry(table, pending.id).input == "1 round, answered by bob"


def test_a_secret_is_asked_with_a_warning_and_not_echoed(
    tools: ToolExecutor, flower: Flower, worker: Worker, open_page: OpenPage, table: Any
) -> None:
    pending = ask(tools, "shop.login")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    page.get_by_text("looks like a secret (password)").wait_for()
    field = page.get_by_label("password")
    assert (field.get_attribute("type"), field.get_attribute("autocomplete")) == ("password", "off")
    field.fill("qwxyz")
    page.get_by_role("button", name="Send answer").click()
    page.locator("#mcp-unfit", has_text="`password`: its value is not what the form asks for").wait_for()
    assert page.get_by_label("password").input_value() == ""
    assert "qwxyz" not in page.content()
    page.get_by_label("password").fill(SECRET)
    send(page)
    assert SECRET not in page.content()
    assert pending.result().content == "['action', 'password']"
    worker.wait_for_log("pidbox received method")
    logs = worker.log + flower.log
    assert not any(each in logs for each in (SECRET, "qwxyz", "mcp_answer("))
    assert SECRET not in str([entry for _, entry in table.xrange(keys.AUDIT)])


@pytest.mark.parametrize(("button", "word"), [("Done", "accept"), ("Decline", "decline"), ("Dismiss", "cancel")])
def test_a_page_to_visit_is_no_link(
    tools: ToolExecutor, flower: Flower, open_page: OpenPage, button: str, word: str
) -> None:
    pending = ask(tools, "shop.visit")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    rows = page.locator(".mcp-answer .detail-row dd").all_inner_texts()
    assert rows == ["bank.example.com", "https://bank.example.com/sign-in?for=you"]
    assert not page.locator('a[href*="bank.example.com"]').count()
    send(page, button)
    assert pending.result().content == word


def test_a_form_can_be_declined_while_it_is_empty(tools: ToolExecutor, flower: Flower, open_page: OpenPage) -> None:
    pending = ask(tools, "shop.order", key="declined")
    page = open_page(address_of(flower, pending), http_credentials=ANN)
    send(page, "Decline")
    assert pending.result().content == "declined: decline"


def test_only_the_form_of_who_signed_in_answers(tools: ToolExecutor, flower: Flower) -> None:
    pending = ask(tools, "shop.order", key="guarded")
    address, size = address_of(flower, pending), {"answer.0.0": "1"}
    assert Visitor(address).get()[0] == 401
    assert Visitor(address).decide("accept", **size)[0] == 401
    ann, bob = Visitor(address, "ann:one"), Visitor(address, "bob:two")
    assert ann.get()[0] == 200, "opening it answers nothing"
    digest = ann.digest()
    assert ann.decide("accept", token="4567", **size)[0] == 403, "the token of another page"
    assert ann.decide("approve", **size)[0] == 400, "it is nothing to approve"
    assert "it asks something else now" in ann.decide("accept", digest="0" * 64, **size)[1]
    assert "the answers have more than" in ann.decide("accept", **size, **{"answer.0.1": "x" * 70_000})[1]
    assert not pending.done()
    assert "answered" in ann.decide("accept", **size)[1]
    assert pending.result().outcome is Outcome.OK
    assert "somebody else was earlier" in bob.decide("decline", digest=digest)[1]
    assert 'name="decision"' not in bob.get()[1]


def test_who_may_press_no_buttons_sees_the_questions(
    tools: ToolExecutor, start_flower: StartFlower, open_page: OpenPage, table: Any
) -> None:
    plain = start_flower()
    pending = ask(tools, "shop.survey", key="shown")
    page = open_page(address_of(plain, pending))
    page.get_by_text(f"tarsy-tasks answer {pending.id}").wait_for()
    assert page.get_by_label("age", exact=True).is_disabled()
    assert not page.get_by_role("button", name="Send answer").count()
    state = table.hget(keys.input_key(pending.id), "state").decode()
    assert state not in page.content()
    digest = table.hget(keys.parked_key(pending.id), "digest").decode()
    assert Visitor(address_of(plain, pending)).decide("decline", digest=digest, name="eve")[0] == 403
    assert not pending.done()
    pending.cancel()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_fits_a_phone(tools: ToolExecutor, flower: Flower, open_page: OpenPage, scheme: str) -> None:
    pending = ask(tools, "shop.enroll")
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme}
    page = open_page(address_of(flower, pending), http_credentials=ANN, **options)
    page.get_by_label("Full name").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(CONTRASTS) == []
    pending.cancel()
