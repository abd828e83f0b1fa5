"""Whether the value of a name is a secret: not a placeholder, a type, a word about one, or code that fetches it.

Owns these words and forms. It does not know the name, nor where the value begins and ends.
"""

import re

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.rules.vocabulary import NON_SECRET_VALUES, PROSE_WORDS, SECRET_NAMES

__all__ = [
    "is_code",
    "is_item",
    "is_label",
    "is_made_up",
    "is_metavariable",
    "is_placeholder",
    "is_prose",
    "is_secret",
    "is_uuid",
    "looks_random",
]

_LOOKED_AT = 512
"""The number of characters of a value that are enough to judge it."""
_MIN_LENGTH = 2
"""In HTML, the value of `accesskey` is a letter."""
_MIN_RANDOM = 8
_MIN_MADE_UP = 6
_LONG = 20
_LONG_NUMBER = 16
_LONG_SEGMENT = 16
_LETTERS_A_WORD = 4
_PUNCTUATION = ".,;:!?"
_AROUND_WORDS = ".,;:!?\"'()[]"

_PLACEHOLDER = re.compile(
    r"""(?xis)
      [*•●]{2,} | [*•●xX.\-_\#?…·]{3,}                                    # ****, xxxxxxxx, ......
    | (?=\S*[*•●]{3})\S*+ | [\w\-]{0,12}(?:\.{3}|…)[\w\-]{0,8}              # xoxb-****, sk-...a1b2
    | (?-i:(?:/(?:[a-z]+(?:[_\-][a-z]+)*\d?|:\w+|\{\w+\}))+/?)          # /reset-password/:token
    | (?=\S*x{8})\S*+                                                  # sk_test_xxxxxxxxxxxx
    | (?-i:[A-Z]{2,}(?:[_+][A-Z]{2,})+)                                  # CHANGE_ME, DATA+OMITTED
    | (?:see|ask|stored|kept|refer|check|contact)\b[ :].*               # see vault
    | (?:[a-z]+[ ])?[a-z]\w*\(\d+(?:,[ ]?\d+)?(?:\)(?:[ ,;\[].*)?)?           # varchar(64) NOT NULL
    | \$\w*\{[^{}]*\}?(?:[/:@]\$\{[^{}]*\}?)* | \$\(.*           # ${VAR:-}, $(command)
    | .*(?:\{\{.*\}\}|<%.*%>|\#\{.*\}|%\(\w+\)[sdr]).*        # templates
    | \{\{[ .$\-].* | \{\{\w*(?:\}\})? | \{[\w.!:\[\]'\- ]*\}? | \[[\w .\-]*\]? | \([\w,.'\-]+(?:[ ][\w,.'\-]+)+\)?
    | \[\w+\(.*                                              # {token}, [REDACTED], (known after apply)
    | (?:<|&lt;|&\#x3C;)[\w .:/|\-]*(?:>|&gt;)?               # <password>, <|endoftext|>
    | alias/[\w/\-]+                                          # of a key of AWS
    | \d+[ -]?(?:bytes?|bits?)                                           # as kubectl describes a Secret
    | %(?:\w+%|[sdvrq])                                      # %PASSWORD%, %s
    | !(?:vault|ref|sub|getatt|join|importvalue|secret|env|env_var|include|reference|encrypted)\b.*
    | @[\w.\-]+@                                             # @PASSWORD@
    | (?:env|file|vault|ref\+\w+|op|arn|ssm|gcpsm|awssm|akv|sops|keyring|valueFrom):\S*  # where it is to be found
    | (?:~|\.{1,2})?(?:/(?=(?:etc|var|run|usr|home|opt|tmp|mnt|root|srv|secrets?|app|data|vault|certs?|dev|proc|sys
      |users|private|tls|ssl|config|workspace)\b)|(?<=[~.])/)[\w.@%+\-/]*  # a path
    | [a-z]:\\[\w.\\\- ]+
    | (?:your|insert|enter|replace)[\W_](?:[a-z]++[\W_]?){0,6} # your-password-here
    | \(\([\w./\-]+\)\)                                       # of Concourse
    | @microsoft\.\w+\(.*                                      # of Azure's App Service
    | \?[a-z]+(?:[_ \-][a-z]+)*                               # ${PASSWORD:?missing}
    | (?:required|nullable|sometimes|string|filled)(?:\|[\w:,.]+)+  # a rule of Laravel
    | (?:text|string|str|varchar|n?char|int|integer|bool|boolean|bytea|blob|uuid|json|date|datetime|timestamp)
      (?:,?[ ](?:nullable|not[ ]null|null|optional|required|unique|indexed))+          # TEXT, nullable
    """
)
_PUBLIC = re.compile(
    r"""(?x)
      (?:(?:sk-)?(?:ssh|ecdsa)-[\w.@\-]+[ \t]+)?AAAA[A-Za-z0-9+/]{2}(?:NzaC|VjZH|NrLX)[^\n]*  # ssh
    | age1[0-9a-z]{50,}
    | SHA256:[A-Za-z0-9+/]{43}=?
    | 0x(?:[0-9A-Fa-f]{8}){1,2} | 0x[0-9A-Fa-f]{40}               # of GPG, of Ethereum
    | [0-9A-F]{40}
    | [0-9a-z]{25}                                             # the id of an object of Docker Swarm
    | -----BEGIN[ ](?:[A-Z0-9 ]*PUBLIC[ ]KEY|CERTIFICATE)[^\n]*.*
    """,
    re.DOTALL,
)
"""Public keys and fingerprints."""
_SHELL_VARIABLES = re.compile(r"\$(\w+)(?:[/:@]\$(\w+))*")
_CODE = re.compile(
    r"""(?xs)
      (?:await\s+|new\s+|not\s+|!|&|\*|\(\w+\)\s*)?
      (?:[A-Za-z_$]{3,}+(?:(?:64|256|512|[12])[A-Za-z_$]*+)?|[A-Za-z_$]++(?=\.|::|->))
      (?:(?:\.|::|->|\?\.|!\.)[A-Za-z_$][\w$]*+)*+(?:<\w+>)?
      (?:\((?:["'A-Za-z_)*&{\[$].*)?|\[["'$\w:].*)              # os.getenv("X"), environ["X"], Optional[str]
    | (?:&?(?:[a-z]\w*\.)?(?:[A-Z][a-z]+)+|&[a-z]\w*)\{.*
    | [A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\(.* | [A-Za-z_]\w*(?:\.\w+)*\[
    | [A-Za-z_][\w.]*+(?:\[(?:[^\[\]]|\[[^\[\]]*+\])*+\])?
      (?:\s++\|\s++[A-Za-z_][\w.]*+(?:\[(?:[^\[\]]|\[[^\[\]]*+\])*+\])?)++(?:\s*=.*)?,?  # str | None = None
    | [*&\[\]]+[a-z]\w*\.[A-Z][A-Za-z]+ | [A-Z]\w*<[A-Za-z_&'\[(].*    # *oauth2.Token, Option<String>
    | [A-Za-z_][\w.\[\]]*[?!]?\s+=\s.* | (?:bool|str|int|bytes|float|Any|object|string|boolean)\s*=.*
    | [A-Za-z_]\w*\([\w.,\s"'=*()]*\)(?:\.\w+(?:\([^()]*\))?)*
    | (?:self|this|cls|process|os|settings|config|cfg|conf|env|args|opts|options|params|props|req|request|var|local
      |data|module|secrets|github|inputs?|user|conn|credentials?|creds|ctx|state|form|body|outputs|event|response|resp
      |res|result|values|vault|z|models|types?|schema|fields?|app|c|s|p|t|m|r|u)
      (?:\??\.[A-Za-z_$][\w$]{0,40})+
    """
)
_ALTERNATIVE = re.compile(r"(?<![ \t])[ \t]++(?:\?\?|\|\||\?:|or)[ \t].*", re.DOTALL)
_DOTTED = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]+)+")
_PLAIN_NAME = re.compile(r"[a-z]{1,20}(?:[-_.][a-z]{1,20}){0,3}")
_LOWER_NAME = re.compile(r"[a-z]+(?:[_ ][a-z]+)*")
_TITLE = re.compile(r"[A-Z][\w/\-]*(?: [A-Z(][\w/\-)]*)+")
_UUID = re.compile(r"(?i)(?<![a-z0-9])[0-9a-z]{8}(?:-[0-9a-z]{4}){3}-[0-9a-z]{12}(?![a-z0-9])")
_ALNUM = re.compile(r"[^\W_]")
_TECHNICAL = re.compile(
    r"(?i)(?:sha|base|md|utf|u?int|float|double|aes|rsa|ed|hs|rs|es|ps|oauth|ipv|http|tls|ssl|v|x|p|b)-?\d+[a-z]{0,3}"
    r"|\d+(?:st|nd|rd|th|s|ms|min|h|d|days?|kb|mb|gb|kib|mib|gib|bytes?|bits?|chars?|fa|x|%)"
    r"|\d{4}-\d\d-\d\d.*|\d[\d:.,]*z?|v\d+(?:alpha|beta|rc)\d*|v?\d{1,4}[.:]\d+[.\-+~][\w.+~:\-]*"
)
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NAME_LIKE = re.compile(r"[\w.:/\-]+")
_SEPARATOR = re.compile(r"[-./_:]")
_LETTERS = re.compile(r"[^A-Za-z]+")
_PHRASE = re.compile(r"[^\W\d_]+(?:[ \-][^\W\d_]+)*[.?!]?")
_CODE_OF_GROUPS = re.compile(r"(?=[^0-9]*[0-9])(?:[A-Za-z0-9]{6,12}|[A-Za-z0-9]{3,12}(?:[- ][A-Za-z0-9]{3,12})+)")
"""A recovery code: `a1b2c-d3e4f`."""


def is_secret(value: str, strength: Strength, *, is_quoted: bool = False) -> bool:
    """Whether a value under a name of this strength is to be masked. If it was quoted, it is not code."""
    said = value.strip()
    value = _without_masks(said) if MASK in said else said
    if len(value) > _LOOKED_AT:
        return True
    folded = value.lower().rstrip(_PUNCTUATION + ")]}")
    if not folded or folded in NON_SECRET_VALUES:
        return False
    if value.isalnum():
        if not folded.strip("x") or (value.isupper() and folded in SECRET_NAMES):
            return False  # xxxxxxxx, --password PASSWORD
    elif is_placeholder(value) or (not is_quoted and is_code(value)):
        return False
    if len(value) < _MIN_LENGTH or _is_public(value, strength):
        return False
    if strength is Strength.STRONG or (strength is Strength.QUOTED and is_quoted and not value.isdigit()):
        return True
    if strength is Strength.LIKELY:
        return _PLAIN_NAME.fullmatch(value) is None and _TITLE.fullmatch(value) is None
    if strength is Strength.FAINT:
        return len(value) >= _LONG and looks_random(said) and not is_uuid(value) and not value.isdigit()
    return looks_random(said) or is_made_up(said)


def _without_masks(value: str) -> str:
    """The part still to be judged if a part of a value is masked already, apart from a user or a host."""
    words = (word.replace(MASK, "") for word in value.split() if not _is_masked_account(word))
    return " ".join(filter(_ALNUM.search, words))


def _is_masked_account(word: str) -> bool:
    return MASK in word.partition("://")[2] or f":{MASK}@" in word


def _is_public(value: str, strength: Strength) -> bool:
    is_sure = strength is Strength.STRONG and value.isalnum() and not value.startswith("0x")
    return not is_sure and _PUBLIC.fullmatch(value) is not None


def is_placeholder(value: str) -> bool:
    """Whether a value only says where the secret goes, or where to find it."""
    if len(value) > _LOOKED_AT:
        return False
    if _PLACEHOLDER.fullmatch(value):
        return True
    if variables := _SHELL_VARIABLES.fullmatch(value):
        # $DB_PASSWORD, $token, $1; but $ecret42 is a password.
        return all(
            name.isupper() or name.isdigit() or rate_name(name) is not None for name in variables.groups() if name
        )
    first, _, rest = value.partition(" (")  # enabled (bcrypt)
    return bool(rest) and first.lower() in NON_SECRET_VALUES


def is_metavariable(value: str) -> bool:
    """Whether a value is a variable of a grammar: `PASSWORD 'new_password'`."""
    return _LOWER_NAME.fullmatch(value) is not None and rate_name(value) is not None


def is_code(value: str) -> bool:
    """Whether an unquoted value is code that fetches it, or its type."""
    if len(value) > _LOOKED_AT:
        return False
    value = _ALTERNATIVE.sub("", value)
    return _CODE.fullmatch(value) is not None or (
        _DOTTED.fullmatch(value) is not None and rate_name(value.rpartition(".")[2]) is not None
    )


def is_label(name: str, value: str) -> bool:
    """Whether the value only repeats the name: `"password": "Password"`, `login.password=Passwort`."""
    if value.islower():
        return False
    words = _LETTERS.sub(" ", value).lower().split()
    is_phrase = _PHRASE.fullmatch(value) is not None
    is_same = _fold(value) == _fold(name) or (value.isalpha() and rate_name(value) is Strength.STRONG)
    is_named = len(words) > 1 and not set(words).isdisjoint(_LETTERS.split(name.lower()))
    return is_same or (is_phrase and (is_named or not value.isascii()))


def _fold(text: str) -> str:
    return _LETTERS.sub("", text).lower()


def looks_random(value: str) -> bool:
    """Whether a text was made to be hard to guess; words, numbers and names of things were not."""
    value = value.replace(MASK, "")[:_LOOKED_AT]
    if value.isdigit():
        return len(value) >= _LONG_NUMBER
    if len(value) < _MIN_RANDOM or "://" in value or any(map(str.isspace, value)) or _TECHNICAL.fullmatch(value):
        return False
    if _UUID.search(value):
        return True
    segments = _SEPARATOR.split(value)
    is_lower, is_upper = value == value.lower(), value == value.upper()
    if not any(map(str.isdigit, value)):
        if is_lower or is_upper:
            return len(value) >= _LONG and (is_upper or max(map(len, segments)) >= _LONG)
        return any(map(_is_jumbled, _LETTERS.split(value)))
    if is_lower and len(segments) > 1 and _NAME_LIKE.fullmatch(value):
        return any(map(_is_random_segment, segments))
    return True


def _is_jumbled(letters: str) -> bool:
    """Whether upper and lower case change more often than in names written as one word."""
    return len(letters) >= _MIN_RANDOM and len(_CAMEL.findall(letters)) * _LETTERS_A_WORD > len(letters)


def _is_random_segment(segment: str) -> bool:
    return len(segment) >= _LONG_SEGMENT and not segment.isalpha() and not segment.isdigit()


def is_uuid(value: str) -> bool:
    """Whether a value is, or contains, a UUID."""
    return _UUID.search(value) is not None


def is_made_up(value: str) -> bool:
    """Whether a word in a sentence is not of its language: it has letters and digits."""
    value = value.replace(MASK, "").rstrip(_PUNCTUATION)
    return (
        len(value) >= _MIN_MADE_UP
        and not any(map(str.isspace, value))
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and not _TECHNICAL.fullmatch(value)
        and (looks_random(value) or value.isalnum() or len(_SEPARATOR.split(value)) == 1)
    )


def is_item(value: str, strength: Strength) -> bool:
    """Whether one of several values under a name of this strength is to be masked. There may be words among them."""
    is_code = _CODE_OF_GROUPS.fullmatch(value) and (value.isdigit() or not _TECHNICAL.fullmatch(value))
    if is_code and strength >= Strength.QUOTED:
        return is_secret(value, Strength.STRONG, is_quoted=True)
    is_some = looks_random(value) or is_made_up(value)
    return is_some and is_secret(value, max(strength, Strength.WEAK), is_quoted=True)


def is_prose(text: str, *, is_quoted: bool = False) -> bool:
    """Whether several words are a sentence, and not a passphrase."""
    words = [word.strip(_AROUND_WORDS).lower() for word in text[: _LOOKED_AT * 8].split()]
    return len(words) > 1 and sum(map(_weigh, words)) > is_quoted


def _weigh(word: str) -> int:
    """How strongly a word indicates a sentence."""
    return 2 if rate_name(word) is Strength.STRONG else word in PROSE_WORDS or word in SECRET_NAMES
