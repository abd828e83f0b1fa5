"""Secrets behind a name: `password: x`, `API_KEY=x`, `"token": "x"`, `--token x`, `<secret>x</secret>`.

Owns how a name and its value are written outside JSON: settings, code, logs, command lines, markup, prose. `names`
decides which names count, `values` whether a value is a secret, `value_spans` where it ends.
"""

import re
from collections.abc import Callable, Iterator

from tarsy_tasks.masking.blocks import continued_lines, indent_of, read_paragraph
from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.following_values import (
    ARGUMENT,
    ATTRIBUTE_VALUE,
    FIELD,
    FOLLOWING_VALUE,
    VALUE_BELOW,
    read_following_value,
    read_value_below,
)
from tarsy_tasks.masking.markup import COUPLED, TAGGED, read_coupled, read_tagged
from tarsy_tasks.masking.name_match import NAME_LIMIT, NameMatch
from tarsy_tasks.masking.names import STEMS, Strength, rate_name
from tarsy_tasks.masking.nested_values import read_nested
from tarsy_tasks.masking.rules.headers import find_in_header, is_header
from tarsy_tasks.masking.rules.vocabulary import PROSE_WORDS
from tarsy_tasks.masking.search import Places
from tarsy_tasks.masking.value_lists import is_enumeration, read_list
from tarsy_tasks.masking.value_spans import Value, is_quoted_at, read_value
from tarsy_tasks.masking.values import (
    is_code,
    is_label,
    is_made_up,
    is_placeholder,
    is_prose,
    is_secret,
    looks_random,
)

__all__ = ["ASSIGNED", "find_assigned"]

_BLOCK_LIMIT = 400

_ANSI = r"(?:\x1b\[[0-9;]*m)"
_TYPE = r"(?:string|String|str|bytes|text|char|Secret|SecretStr|Final|any|object|\[\]byte)"
_ASSIGNED = (
    rf"(?:[\\\"'`\]?!*]|%22|%27|{_ANSI})*(?:[ \t]?#?\d{{1,2}})?[ \t]*(?:(?i:value|is|are)[ \t]*)?"
    rf"(?:[(\[][^()\[\]\n]{{0,40}}[)\]][ \t]*)?(?:{_TYPE}[ \t]+)?{_ANSI}*"
    r"(?:=>|:=|===?|!==?|::[ \t]|[:=]\**|%3[AaDd]|\.{4,}[ \t]*:?)"
)
_LISTED = r"\\*[\"'][ \t]*(?:,|->|\r?\n[ \t]*\d{1,4}\))[ \t]*(?:[A-Za-z]?\\*[\"'])"
_CALLED = r"\([ \t]*[A-Za-z]?\\*[\"'`]"
_PAIRED = (
    r"(?:\\*[\"'])?(?:(?:[ \t]+[\w\-]+=\\*[\"'][^\"'\n]*[\"']){1,2}|(?:\r?\n[ \t]+[\w\-]+:[ \t][^\n]*){1,2}\n)?"
    r"(?:[ \t]*->[ \t]*null)?[ \t]*(?:[,;{}\r\n]\s*)?(?:[-+~][ \t]+)?(?:\\*[\"'])?"
    r"(?i:value|val|default|default_?value|content|string_?value)\\*[\"']?[ \t]*[:=]"
)
_OPENED = r"[ \t]?\\*[\"'][ \t]*\{[ \t\r\\]*\n"
_POSTED = r"\\*[\"'][\r\\]*\n(?:[ \t]*Content-[^\n]*\n)*[ \t\r\\]*\n"
_HEADED = r"[ \t]*\r?\n[ \t]*(?:\r?\n[ \t]*)?(?:\d{1,2}[.)]|[-*])[ \t]"
_EXPLICIT = r"[\"']?[ \t]*\r?\n[-+~>#|]?[ \t]*:"
_KEYED = r"(?i:key)[ \t]?[\"'`\]]*[ \t]*(?:=>|:=|[:=])[ \t]*[\"'`]?[A-Za-z0-9+/_\-.~]{20}"
_COMMAND = r"(?:-|\b(?:(?:ENV|ARG|setenv|setx|set)[ \t]+(?:-\w+[ \t]+)*|(?:login|account)[ \t]+[\w.@\-]+\s+))"

ASSIGNED = (
    rf"{STEMS}[\w.\-]*(?:{_PAIRED}|{_ASSIGNED}|{_LISTED}[^\"'\n]*[\"'][ \t]*(?:[,)\]}}\n]|$)"
    rf"|{_CALLED}|{_OPENED}|{TAGGED}"
    rf"|{COUPLED}|{_HEADED}|{_POSTED}|{_EXPLICIT}|{FOLLOWING_VALUE})|</[\w:.\-]*{STEMS}[\w.\-]*>|{_COMMAND}[\w.\-]*{STEMS}[\w.\-]*(?:{ARGUMENT}|{VALUE_BELOW})|{_KEYED}"
)
"""A name and everything that may be between it and its value."""

_search = Places([ASSIGNED])
_NAME = re.compile(rf"(?:{STEMS}|(?i:key))[\w.\-]*", re.ASCII)
_TAIL = re.compile(
    rf"(?P<paired>{_PAIRED})|(?P<coupled>{COUPLED})|(?P<headed>{_HEADED})|(?P<assigned>{_ASSIGNED})|(?P<listed>{_LISTED})|(?P<called>{_CALLED})|(?P<opened>{_OPENED})"
    rf"|(?P<tagged>{TAGGED})|(?P<posted>{_POSTED})|(?P<explicit>{_EXPLICIT})|(?P<followed>{FOLLOWING_VALUE}|{ARGUMENT})|(?P<under>{VALUE_BELOW})"
)
_NAME_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$"

_DEFAULT = re.compile(r"[^}]*?\b(?:default|value)[ \t]*=")
_DATA_HEADING = re.compile(r"[ \t]*\r?\n[ \t]*-{3,}\r?\n")
_BELOW = re.compile(
    r"[ \t]*\r?\n(?P<indent>[ \t]*)(?P<dash>-[ \t]+)?(?P<quote>[\"']?)"
    r"(?P<word>[^\s\"'=:\[\]{}()<>#;,|\-][^\s\"'=:\[\]{}()<>#;,|]*)(?P=quote)[ \t]*(?:\r?\n|\Z)"
)
_QUOTED_BELOW = re.compile(r"[ \t]*\r?\n(?P<indent>[ \t]+)(?=[\"'])")
_TYPED = re.compile(r"[ \t]+::")
"""In LDIF there is no space before it."""
_SETTER = re.compile(r"(?i)(?:\bdefine|setdefault|setenv|putenv|setproperty|addheader|\.put)\([ \t]*[\"']$")
_CHANGED = re.compile(r"[\"'][ \t]*[-=]>[ \t]*(?=[\"'])")
_LABELLED = re.compile(r"[ \t]+(?i:value)[ \t]*[:=]")
"""`Client Secret Value: x`."""
_OWNER = re.compile(r"(?<![A-Za-z])([A-Za-z]++) $")
_OTHER_LINE = re.compile(r"[-*#\[{(<>|&}\])\"'`/@]|[\w.\-\"' ]{1,64}(?::(?:\s|$)|=(?!=|$)|[({]|=>)")
"""A comment, an item, another field, code; but base64 may end with `=`."""
_CONTINUED = re.compile(r"\\\r?\n")
_PROCESS = re.compile(r"\]?\[\d{3,}\]:")
"""`passwd[1811]: `, in a system log."""
_IN_IDENTIFIER = re.compile(r"[\w\-]:$")
_FALLBACK = re.compile(
    r"[ \t]*(?:<%=?[ \t]*)?[A-Za-z_$][\w.:>\-]*(?:[(\[][^\n()\[\]]{0,100}[)\]])?"
    r"[ \t]*(?:\?\?|\|\||\?:|\bor)[ \t]+(?=[\"'`])"
)
_COMPARING = ("==", "!=")
_QUOTES = ('"', "'")
_OPENING = (*_QUOTES, "`")
_HEADING_BEFORE = re.compile(r"(?:^|\n)[ \t#*>]*(?:[A-Za-z]+ ){0,6}$")
_LISTING = frozenset({"assigned", "explicit", "headed"})
_CONTINUABLE = frozenset({"assigned", "explicit"})
_KEY_SIGN = re.compile(r"(?:^|\n)[-+~>#| \t]*\?[ \t]+(?:[!&]\S+[ \t]+)*[\"']?$")
"""Of an explicit key in YAML: `? password`, and `: x` in the line below."""
_PARAMETER_MARKS = frozenset("?&")
_PARTLY_MASKED = re.compile(rf"[\w.+/~\-]{MASK}|{MASK}[\w.+/~\-]")
_CLASS = re.compile(r"(?:[A-Z]+[a-z]+){2,}")
_ATTRIBUTE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w{0,40})+")
_LINE = re.compile(r"[ \t]*([^\r\n]+)")
_PARTS = re.compile(r"[^\s/]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]+")
_BEHIND_ARGUMENT = frozenset(",)}")
_READING = re.compile(
    r"(?i)(?:ask|prompt|generate|gen|make|build|new|issue|mint|sign|register|get|load|fetch|read|find|lookup|has|is|validate|check|verify|require|delete|remove|list|describe|rotate"
    r"|refresh|revoke|changeuser|parse|resolve|input|label|test|expect)(?=[_A-Z]|$)"
)


def find_assigned(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, in no order; `projection` is `search.project(text)`."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        name = _NAME.search(text, found)
        tail = _TAIL.match(text, name.end()) if name else None
        if name is None or tail is None:
            position = name.end() if name else found + 1
            continue
        assert tail.lastgroup is not None
        position = tail.end() if tail.lastgroup == "assigned" else name.end()
        start = _start_of_name(text, name.start())
        bare = text[start : name.end()].lstrip("-")
        if tail.lastgroup == "assigned" and is_header(bare):
            found_edits = find_in_header(text, bare, tail.end(), name.end() - len(bare))
        elif (named := _rate(text, start, name.end(), tail)) is not None:
            found_edits = _find(named)
            # There may be other names among them, so the search does not go on behind them.
            yield from _find_nested(named)
        else:
            continue
        for edit in found_edits:
            position = max(position, edit.end)
            yield edit


def _rate(text: str, start: int, end: int, tail: re.Match[str]) -> NameMatch | None:
    """A name that a secret may be behind."""
    name = text[start:end]
    strength = rate_name(name)
    if strength is None or _is_part(text, start, name, tail):
        return None
    if "/" in name:
        strength = Strength.WEAK  # a path, perhaps to a file that holds it
    elif text[max(0, start - 1) : start] in _PARAMETER_MARKS and tail[0] == "=":
        strength = Strength.STRONG if strength >= Strength.WEAK else strength  # of an address
    named = NameMatch(text, start, end, strength, tail)
    return None if tail.lastgroup == "explicit" and not _KEY_SIGN.search(named.before) else named


def _find_nested(named: NameMatch) -> Iterator[Edit]:
    if named.tail.lastgroup in _CONTINUABLE and not named.tail[0].endswith(_COMPARING):
        for value in read_nested(named):
            is_call = not value.is_quoted and named.text[value.end - 1] == "("
            if not is_call and (part := _secret_part(named, value)) is not None:
                yield Edit(part.start, part.end)


def _find(named: NameMatch) -> Iterator[Edit]:
    text, tail = named.text, named.tail
    assert tail.lastgroup is not None
    is_heading = tail.lastgroup != "headed" or _HEADING_BEFORE.search(named.before) is not None
    if tail.lastgroup in _LISTING and is_heading and (values := list(read_list(named))):
        yield from (Edit(value.start, value.end) for value in values)
        return
    value = _READERS[tail.lastgroup](named)
    while value is not None:
        if tail.lastgroup in _CONTINUABLE and not value.is_quoted:
            value = Value(value.start, value.end - (_CONTINUED.match(text, value.end - 1) is not None))
            yield from _find_continued(named, value)
        yield Edit(value.start, value.end)
        changed = _CHANGED.match(text, value.end)
        value = read_value(text, changed.end()) if changed else None


def _find_continued(named: NameMatch, value: Value) -> Iterator[Edit]:
    """What the lines below go on with: words as random as a secret is, or the rest of a passphrase."""
    has_words = " " in named.text[value.start : value.end]
    line_start = named.line_start if not named.tail[0].endswith(_COMPARING) else None
    for start, end in continued_lines(named.text, value.end, line_start):
        content = named.text[start:end]
        if _OTHER_LINE.match(content) or is_placeholder(content) or is_code(content) or is_prose(content):
            return
        if not (has_words or MASK in content or any(map(_is_random, content[:_BLOCK_LIMIT].split()))):
            return
        yield Edit(start, end)


def _is_random(word: str) -> bool:
    return looks_random(word) or is_made_up(word)


def _is_part(text: str, start: int, name: str, tail: re.Match[str]) -> bool:
    """Whether it is only the end of a name, such as `public key`, or the middle of an identifier: `arn:…:secret:x`."""
    if name.lower() in ("key", "keys"):
        owner = _OWNER.search(text, max(0, start - NAME_LIMIT), start)
        return owner is not None and (owner[1].lower() in PROSE_WORDS or rate_name(f"{owner[1]} key") is None)
    if (
        tail.lastgroup == "assigned"
        and tail[0][:1] in _QUOTES
        and ATTRIBUTE_VALUE.search(text, max(0, start - 4), start)
    ):
        return True
    if _PROCESS.match(tail[0]):
        return True
    return name.islower() and tail[0] == ":" and _IN_IDENTIFIER.search(text, max(0, start - 8), start) is not None


def _start_of_name(text: str, start: int) -> int:
    limit = max(0, start - NAME_LIMIT)
    start = limit + len(text[limit:start].rstrip(_NAME_CHARS))
    return start + text.startswith("</", start - 1)


def _read_assigned(named: NameMatch) -> Value | None:
    text, position = named.text, named.tail.end()
    if _TYPED.match(named.tail[0]):
        return None
    line_start = named.line_start
    is_compared = named.tail[0].endswith(_COMPARING)
    if fallback := _FALLBACK.match(text, position):
        value = read_value(text, fallback.end())
    elif heading := _DATA_HEADING.match(text, position):  # as `kubectl describe configmap` shows it
        value = read_value(text, heading.end())
        whole = Value(*read_paragraph(text, heading.end()), is_quoted=True, is_block=True)
        is_longer = value is not None and value.end < whole.end and named.strength is Strength.STRONG
        if is_longer and _secret_part(named, whole) is not None:
            return whole
    elif is_compared and not named.opened and not is_quoted_at(text, position):
        return None  # with a variable
    else:
        value = read_value(text, position, line_start=line_start, opened=named.opened)
    if value is not None and not value.is_quoted and is_compared:
        return None
    if value is None and line_start is not None and named.strength is Strength.STRONG:
        value = _read_below(named, line_start)
    return None if value is None else _secret_part(named, value)


def _read_below(named: NameMatch, line_start: int) -> Value | None:
    """The line below a name, if it is in quotes, or one word and not a plain one; in YAML only if it is indented, or an
    item."""
    quoted = _QUOTED_BELOW.match(named.text, named.tail.end())
    if quoted and len(quoted["indent"]) > indent_of(named.text, line_start):
        return read_value(named.text, quoted.end(), line_start=line_start)
    below = _BELOW.match(named.text, named.tail.end())
    if below is None or below["word"].isalpha():
        return None
    is_deeper = below["dash"] or len(below["indent"]) > indent_of(named.text, line_start)
    return Value(*below.span("word"), is_quoted=True) if is_deeper or named.tail[0].endswith("=") else None


def _is_reference(named: NameMatch, value: Value, content: str) -> bool:
    """Whether code passes on a secret under a similar name: `password=new_password,`."""
    if value.is_quoted and named.before.endswith(":") and content.isidentifier():
        return content == named.name  # of a component in Vue
    if value.is_quoted or named.name.isupper():
        return False
    is_argument = named.text[value.end : value.end + 3].lstrip(" \n")[:1] in _BEHIND_ARGUMENT
    is_statement = named.tail[0].endswith((" =", " :="))
    is_typed = is_argument or named.text.startswith(" =", value.end)
    if (is_typed and _CLASS.fullmatch(content)) or (is_statement and _ATTRIBUTE.fullmatch(content)):
        return True
    is_own = is_statement and named.name.startswith(("self.", "this.", "cls."))
    if not _IDENTIFIER.fullmatch(content) or (rate_name(content) is None and not is_own):
        return False
    name, folded = named.name.lower(), content.lower()
    if folded == re.split(r"\W", name)[-1] or name in folded or (is_argument and name.endswith(folded)):
        return True
    if content.isalpha() and content.islower() and not is_own:
        return False  # `password=mysecretpassword`
    return is_argument or (is_statement and named.start != named.line_start)


def _secret_part(named: NameMatch, value: Value) -> Value | None:
    text, strength = named.text, named.strength
    content = text[value.start : value.end]
    if _PARTLY_MASKED.search(content) and "://" not in content and " " not in content:
        return value
    if _is_reference(named, value, content) or is_label(named.name, content):
        return None
    if value.is_block:
        words = content.split()
        is_some = strength is Strength.STRONG or any(map(looks_random, words))
        return value if is_some and not is_prose(content, is_quoted=True) else None
    if value.is_quoted and " " in content and text[value.start - 1] == "`" and not any(map(str.isdigit, content)):
        return None  # a command
    if " " in content.strip() and is_prose(content, is_quoted=value.is_quoted):
        word = content.split()[0]
        is_some = is_made_up(word) and is_secret(word, strength, is_quoted=value.is_quoted)
        return Value(value.start, value.start + len(word)) if is_some else None
    if is_secret(content, strength, is_quoted=value.is_quoted or named.name.startswith("--")):
        return value
    if strength is not Strength.STRONG and is_enumeration(named, content):
        return value
    is_one = value.is_quoted or strength is Strength.STRONG or not {" ", "/"}.intersection(content)
    if is_one or is_placeholder(content) or is_code(content):
        return None
    words = [
        word
        for word in _PARTS.finditer(content)
        if is_secret(word[0], strength) and not FIELD.match(word[0].lstrip("[({"))
    ]
    return Value(value.start + words[0].start(), value.start + words[-1].end()) if words else None


def _read_paired(named: NameMatch) -> Value | None:
    """`name: X` and next to it `value: Y`."""
    if not named.is_labelled:
        return _read_assigned(named) if _LABELLED.fullmatch(named.tail[0]) else None
    text, tail = named.text, named.tail
    line_start = text.rfind("\n", tail.start(), tail.end()) + 1
    value = read_value(text, tail.end(), line_start=line_start or None)
    return None if value is None else _secret_part(named, value)


def _read_opened(named: NameMatch) -> Value | None:
    """`variable "password" {`, and in the block its value."""
    if not named.is_labelled:
        return None
    default = _DEFAULT.match(named.text, named.tail.end(), named.tail.end() + _BLOCK_LIMIT)
    value = read_value(named.text, default.end()) if default else None
    return None if value is None else _secret_part(named, value)


def _read_listed(named: NameMatch) -> Value | None:
    """`("password", "x")`, but not a list of words such as `["secret", "token"]`."""
    if named.text[named.start - 1 : named.start] not in ("'", '"'):
        return None
    if (value := _read_argument(named)) is None:
        return None
    if _SETTER.search(named.before) or "\n" in named.tail[0]:
        return value if _is_argument(named, value) else None
    content = named.text[value.start : value.end]
    is_word = not is_made_up(content) and not (named.strength is Strength.STRONG and looks_random(content))
    return None if is_word or not is_secret(content, named.strength, is_quoted=True) else value


def _read_called(named: NameMatch) -> Value | None:
    """`setPassword("x")`, but not `get_secret("name")`."""
    if _READING.match(re.split(r"[.\->:]", named.name)[-1]):
        return None
    value = _read_argument(named)
    return value if value is not None and _is_argument(named, value) else None


def _read_posted(named: NameMatch) -> Value | None:
    """A field of a form, as `multipart/form-data` has it."""
    run = _LINE.match(named.text, named.tail.end())
    if run is None or not named.before.endswith(('name="', "name='")):
        return None
    return Value(*run.span(1)) if is_secret(run[1], named.strength, is_quoted=True) else None


def _read_argument(named: NameMatch) -> Value | None:
    """The value whose opening quote, if it has one, ends the tail."""
    tail = named.tail[0]
    length = len(tail) - len(tail[:-1].rstrip("\\")) if tail.endswith(_OPENING) else 0
    return read_value(named.text, named.tail.end() - length)


def _is_argument(named: NameMatch, value: Value) -> bool:
    content = named.text[value.start : value.end]
    return is_secret(content, named.strength, is_quoted=True) and not is_prose(content)


_READERS: dict[str, Callable[[NameMatch], Value | None]] = {
    "assigned": _read_assigned,
    "explicit": _read_assigned,
    "paired": _read_paired,
    "opened": _read_opened,
    "listed": _read_listed,
    "called": _read_called,
    "tagged": read_tagged,
    "coupled": read_coupled,
    "headed": read_value_below,
    "under": read_value_below,
    "posted": _read_posted,
    "followed": read_following_value,
}
