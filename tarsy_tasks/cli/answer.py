"""`tarsy-tasks answer`: what a person answers to the questions of a server, for a call that waits in the inbox."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tarsy_tasks.broker import keys, parked_views
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.input_rounds import Answered, InputRound, give_answers
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.inbox import clean_name
from tarsy_tasks.cli.output import console, json_option, notes, print_json
from tarsy_tasks.questions import INPUT_REQUIRED, InputQuestion
from tarsy_tasks.telemetry.decision_texts import ANSWER_TEXTS
from tarsy_tasks.telemetry.printable import make_visible

if TYPE_CHECKING:
    from tarsy_tasks.broker.parked_views import ParkedCallView

__all__ = ["answer"]


@click.command()
@click.argument("task_id", metavar="ID")
@click.argument("values", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--accept", "word", flag_value="accept", help="Accept, with the defaults of a form.")
@click.option("--decline", "word", flag_value="decline", help="Say no to all questions.")
@click.option("--cancel", "word", flag_value="cancel", help="Do not decide; the server may ask again.")
@click.option(
    "--digest", default="", help="Of the questions to answer, as shown with them; refused if it asks others now."
)
@click.option("--as", "by", default="", metavar="NAME", help="Who answers; the default is your login name.")
@json_option
def answer(task_id: str, values: Sequence[str], word: str | None, digest: str, by: str, *, as_json: bool) -> None:
    """Answer what the server of a call asks, for a call that waits in the inbox; without values it shows the questions.

    VALUES are the fields of its form, as `size=5`; of several questions `QUESTION.size=5`. Exit code 1 when the answer
    does not fit, or comes too late.
    """
    # Not above: the completion of a shell imports this module, too.
    from tarsy_tasks.input_answers import UnfitAnswerError, load_asked, read_answers

    if values and word:
        raise click.UsageError(f"give values or --{word}, not both")
    by = clean_name(by)
    with broker() as redis:
        # In this order: if it asks something else in between, the digest is the old one, and the answer is refused.
        view = parked_views.load(redis, task_id)
        kept = InputRound.read(redis.hmget(keys.input_key(task_id), *InputRound.FIELDS))
        if view is None or view.reason != INPUT_REQUIRED or kept is None:
            _end(task_id, Answered.UNKNOWN, as_json=as_json)
            return
        if not (values or word):
            _show(view, as_json=as_json)
            return
        if digest not in ("", view.digest):
            _end(task_id, Answered.CHANGED, as_json=as_json)
            return
        asked = load_asked(kept.asked)
        try:
            sent = read_answers(asked, word or _read_values(values, [each.name for each in asked]))
        except UnfitAnswerError as error:
            raise click.UsageError(f"the answer does not fit, and was not sent: {error}") from None
        text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
        said = redis.execute_command(*give_answers.command(tag=task_id, digest=view.digest, answers=text, by=by))
    _end(task_id, Answered(as_text(said)), as_json=as_json)


def _end(task_id: str, answered: Answered, *, as_json: bool) -> None:
    if as_json:
        print_json({"id": task_id, "result": answered})
    else:
        where = console if answered is Answered.ANSWERED else notes
        where.print(f"{make_visible(task_id)}: {ANSWER_TEXTS[answered]}")
    if answered is not Answered.ANSWERED:
        raise click.exceptions.Exit(FAILED)


def _show(view: "ParkedCallView", *, as_json: bool) -> None:
    questions: list[dict[str, Any]] = view.about.get("questions", [])
    if as_json:
        print_json({"id": view.id, "digest": view.digest, "questions": questions})
        return
    for each in map(InputQuestion.model_validate, questions):
        console.print(f"{make_visible(each.name)}: {make_visible(each.message)}")
        if each.warning:
            notes.print(f"  {make_visible(each.warning)}", style="yellow")
        if each.mode == "url":
            console.print(f"  page to visit: {make_visible(each.url)}")
        fields: dict[str, Any] = each.requested_schema.get("properties") or {}
        for name, field in fields.items():
            console.print(f"  {make_visible(name)}: {make_visible(json.dumps(field, ensure_ascii=False))}")
    console.print(f"digest: {make_visible(view.digest)}")


def _read_values(words: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {name: {} for name in names}
    for word in words:
        key, separator, value = word.partition("=")
        question, dot, field = key.partition(".")
        if not separator or not key:
            raise click.UsageError(f"{word!r} is not KEY=VALUE")
        if dot and question in answers:
            answers[question][field] = value
        elif len(names) == 1:
            answers[names[0]][key] = value
        else:
            raise click.UsageError(f"{key!r} is a field of which question? Write QUESTION.FIELD, of {', '.join(names)}")
    return answers
