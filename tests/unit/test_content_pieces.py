"""Of a secret that a server cuts into pieces, or packs into bytes, no piece is left."""

import base64
import json
import random
from itertools import pairwise
from string import ascii_letters, digits

import pytest
import yaml
from mcp_types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from tarsy_tasks import ToolResult
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import Masker, build_masker
from tarsy_tasks.worker.calls.content import STRUCTURED_LIMIT, build_result

KNOWN = "kn0wn-Q7wE5rT3yU1iO9pA8sD6fG4hJ2kL0zXc"
masker = build_masker(known=KnownSecrets([KNOWN]))
SECRET = {"kind": "Secret", "data": {"walnut": "d2FsbnV0LXRyZWU=", "other": "YWNvcm4="}, "type": "Opaque"}


def build(*content: object, own: Masker = masker, **fields: object) -> ToolResult:
    result = CallToolResult(content=list(content), **fields)
    return build_result(result, own, call_id="c", name="s.t", attempts=1, duration_s=0.1)


def text(value: str) -> TextContent:
    return TextContent(type="text", text=value)


def resource(value: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri="mem://t", text=value))


def blob(content: bytes) -> EmbeddedResource:
    encoded = base64.b64encode(content).decode()
    return EmbeddedResource(type="resource", resource=BlobResourceContents(uri="mem://b", blob=encoded))


@pytest.mark.parametrize("document", [json.dumps(SECRET), json.dumps(SECRET, indent=2), yaml.safe_dump(SECRET)])
@pytest.mark.parametrize("part", [text, resource])
def test_of_a_kubernetes_secret_in_two_parts_nothing_is_left(document: str, part: object) -> None:
    assert callable(part)
    for cut in range(1, len(document)):
        shown = build(part(document[:cut]), part(document[cut:])).model_dump_json()
        assert "bnV0LXRy" not in shown, cut
        assert "Fjb3Ju" not in shown, cut
        assert "YWNvcm4" not in shown, cut


def test_a_document_in_parts_is_joined_only_to_mask_secrets() -> None:
    document = json.dumps({"password": "hunter2", "a": [1, 2]})
    assert json.loads(build(text(document[:30]), text(document[30:])).content) == {"password": MASK, "a": [1, 2]}
    innocent = json.dumps({"user": "ann", "a": [1, 2]})
    assert build(text(innocent[:9]), text(innocent[9:])).content == f"{innocent[:9]}\n{innocent[9:]}"
    assert build(text("kind: Secret"), text("type: Opaque")).content == "kind: Secret\ntype: Opaque"


@pytest.mark.parametrize("cuts", [(800,), (3, 1400), (500, 900, 1300), (1, 2, 3)])
def test_a_long_secret_is_masked_wherever_it_is_split(cuts: tuple[int, ...]) -> None:
    letters = random.Random(5)
    long = "".join(letters.choice(ascii_letters + digits) for _ in range(1467))
    token = f"eyJhbGciOiJIUzI1NiJ9.{long}.{long[:43]}"
    knowing = build_masker(known=KnownSecrets([long]))
    for secret, own in ((long, knowing), (f"a {long}", knowing), (token, masker)):
        borders = [0, *cuts, len(secret)]
        pieces = [secret[start:end] for start, end in pairwise(borders)]
        result = build(*map(text, pieces), own=own)
        assert len(result.content.replace(MASK, "").replace("\n", "")) < 30, result.content


def test_a_known_secret_split_over_parts_is_masked() -> None:
    for cut in range(1, len(KNOWN)):
        shown = build(
            resource(f"a {KNOWN[:cut]}"),
            resource(f"{KNOWN[cut:]} z"),
            structured_content={"parts": [f"a {KNOWN[:cut]}", 7, f"{KNOWN[cut:]} z"], "b": "c"},
        ).model_dump_json()
        assert KNOWN[:cut][-4:] not in shown.replace(MASK, "") or cut < 4
        assert KNOWN[cut:][:4] not in shown.replace(MASK, "") or len(KNOWN) - cut < 4
        assert '"b":"c"' in shown


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00bin " + KNOWN.encode() + b" \x80",
        b"\x89PNG\r\n\x1a\n\x00tEXt" + KNOWN.encode() + b"\xff\x00\x00",
        b"\x00\x01\x02\xff\x00\x00\x00" + KNOWN.encode("utf-16-le"),
        b"\x00\xffghp_abcdefghijklmnopqrstuvwxyz012345\x00",
    ],
)
def test_bytes_with_a_secret_are_left_out_with_a_note(content: bytes) -> None:
    result = build(blob(content))
    assert result.attachments[0].data is None
    assert (result.attachments[0].text or "").startswith("[left out")
    assert result.attachments[0].size_bytes == len(content)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1", "utf-8"])
def test_texts_in_other_encodings_are_masked(encoding: str) -> None:
    result = build(blob("für: bob\npassword: walnut-tree-9\n".encode(encoding)))
    assert base64.b64decode(result.attachments[0].data or "").decode(encoding) == f"für: bob\npassword: {MASK}\n"


def test_bytes_without_a_secret_stay() -> None:
    content = bytes(range(256)) * 200
    assert base64.b64decode(build(blob(content)).attachments[0].data or "") == content
    image = ImageContent(type="image", data=base64.b64encode(content).decode(), mime_type="image/png")
    assert build(image).attachments[0].data == image.data


def test_invalid_base64_is_searched_as_plain_text() -> None:
    image = ImageContent(type="image", data="password: hunter2hunter2!", mime_type="image/png")
    assert "hunter2" not in build(image).model_dump_json()


def test_a_structured_value_that_is_too_long_is_left_out() -> None:
    rows = [{"name": f"row {n}", "text": "x" * 1000} for n in range(STRUCTURED_LIMIT // 1000)]
    result = build(text("42 rows"), structured_content={"rows": rows})
    assert result.structured is None
    assert result.content.startswith("42 rows\n[left out: a structured value")
    assert build(structured_content={"rows": rows[:500]}).structured == {"rows": rows[:500]}
