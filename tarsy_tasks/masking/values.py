"""Whether what stands behind a name is a secret: not a placeholder, a type, a word about one, or code that fetches it.

Owns these words and forms. Which name it was, and where the value begins and ends, is known to who asks.
"""

import re

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.names import Strength, rate_name

__all__ = ["is_made_up", "is_prose", "is_secret", "looks_random"]

_MIN_WEAK = 8
_MIN_MADE_UP = 6
_LONG = 20
_LITERALS = frozenset(
    "true false null none nil undefined nan yes no on off enabled disabled required optional empty unset default "
    "set missing invalid valid expired incorrect wrong changed unchanged reset ok okay hidden redacted masked removed "
    "omitted filtered denied granted failed success succeeded unknown present absent provided not new old any auto "
    "manual basic bearer digest ntlm kerberos password passwords token tokens secret secrets bytes "
    "str string int integer number bool boolean text varchar char object array list dict map bytes byte any void "
    "char[] string[] byte[] []byte optional[str] securestring secretstr float double date uuid opaque "
    "flag option argument variable parameter field prompt file here below above"
    " the a an is are was be must should may can will has have had for to of in on at by with from and or that this "
    "it its your you my our we i if when where which what who how please enter type provide use using".split()
)
_PROSE = frozenset(
    "the a an is are was were be been being must should shall may might can cannot could will would has have had does "
    "do did not for to of in on at by with from and or but that this these those it its your you my our we they if "
    "when where which what who how please enter type provide use using used least than too only no length characters "
    "character required expired invalid incorrect missing changed field value".split()
)
_PLACEHOLDER = re.compile(
    rf"""(?xis)
      .*{MASK}.*
    | [*•●xX.\-_\#?…·]{{3,}}                              # ****, xxxxxxxx, ......
    | \$\{{?[\w.:?\-]*\}}?(?:[/:]\$\{{?[\w.:?\-]*\}}?)*    # $VAR, ${{VAR:-}}
    | \$[({{].*                                          # $(command), ${{var.x}}
    | .*(?:\{{\{{|<%|\#\{{|%\().*                         # templates
    | <[^<>]*>? | \{{[^{{}}]*\}} | \[[^\[\]]*\]           # <password>, {{token}}, [REDACTED]
    | \d+\ ?bytes?                                       # as kubectl describes a Secret
    | %(?:\w+%|[sdvrq])                                  # %PASSWORD%, %s
    | !\w+.*                                             # !vault, !Ref
    | @\w+@                                              # @PASSWORD@
    | (?:env|file|vault|secret|secrets|ref\+\w+|op|arn|ssm|gcpsm|awssm|akv|sops|keyring|pass|keychain|valueFrom)
      :[^\s]*                                            # where it is to be found
    | (?:~|\.{{1,2}})?(?:/(?=(?:etc|var|run|usr|home|opt|tmp|mnt|root|srv|secrets?|app|data|vault|certs?|dev|proc|sys
      |users|private|tls|ssl|config|workspace|etc)\b)|(?<=[~.])/)[\w.@%+\-/]*  # a path
    | [a-z]:\\[\w.\\\- ]+
    | (?:your|my|the|some|insert|enter|replace|example|dummy|sample|placeholder|todo|fixme)[\W_]
      (?:[a-z]+[\W_]?){{0,6}}                            # your-password-here
    | \W*(?:change|replace)[\W_]?(?:me|this)\W*
    """
)
_CODE = re.compile(
    r"""(?xs)
      (?:await\s+|new\s+|not\s+|!|&|\*|\(\w+\)\s*)?[A-Za-z_$][\w$]*(?:(?:\.|::|->|\?\.|!\.)[A-Za-z_$][\w$]*)*(?:<\w+>)?
      (?:\(.*|\[["'$\w].*|\[$|\{.*)                        # os.getenv("X"), environ["X"], Optional[str]
    | (?:self|this|cls|process|os|settings|config|cfg|conf|env|args|opts|options|params|props|req|request|var|local
      |data|module|secrets|github|inputs?|user|conn|credentials?|creds|ctx|state|form|body|outputs|event|response|resp
      |res|result|values|vault|z|models|types?|schema|fields?|app|c|s|p|t|m|r|u)
      (?:\??\.[A-Za-z_$][\w$]*)+
    | [a-z_]+(?:\.[a-z_]+)+
    """
)
_IDENTIFIER = re.compile(r"[A-Za-z_]+[A-Za-z_\-]*")
_CAMEL = re.compile(r"[A-Z]?[a-z]+(?:[A-Z][a-z]+)*")
_RFC1123 = re.compile(r"[a-z0-9]+(?:[-./][a-z0-9]+)*")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TECHNICAL = re.compile(
    r"(?i)(?:sha|base|md|utf|aes|rsa|ed|hs|rs|es|ps|oauth|ipv|http|tls|ssl|v|x|p|b)-?\d+[a-z]{0,3}"
    r"|\d+(?:st|nd|rd|th|s|ms|min|h|d|days?|kb|mb|gb|kib|mib|gib|bytes?|bits?|chars?|fa|x|%)|\d{4}-\d\d-\d\d.*|\d[\d:.,]*z?"
)
_WORDS = re.compile(r"[\w'’\-]+")


def is_secret(value: str, strength: Strength, *, is_quoted: bool = False) -> bool:
    """Whether a value under a name of this strength is to be masked.

    Args:
        value: Without its quotes.
        strength: How sure the name is.
        is_quoted: It stood in quotes, so it is no code.
    """
    value = value.strip()
    if not value or len(value) > 64 * 1024:
        return bool(value)
    folded = value.lower().rstrip(".,;:!?")
    if not folded or folded in _LITERALS or _PLACEHOLDER.fullmatch(value):
        return False
    if not is_quoted and _CODE.fullmatch(value):
        return False
    if _IDENTIFIER.fullmatch(value) and rate_name(value) is not None:
        return False  # password=password, token=access_token
    if strength is Strength.STRONG or (strength is Strength.QUOTED and is_quoted and not value.isdigit()):
        return True
    return looks_random(value)


def looks_random(value: str) -> bool:
    """Whether somebody made the text up to be hard to guess; words, numbers and names of things are not."""
    if len(value) < _MIN_WEAK or " " in value or "://" in value:
        return False
    has_digit = any(map(str.isdigit, value))
    has_lower, has_upper = value != value.upper(), value != value.lower()
    if not has_digit:
        if _CAMEL.fullmatch(value) or value.islower() or value.isupper():
            return len(value) >= _LONG and value.isalpha()
        return has_lower and has_upper and len(value) >= _MIN_WEAK and not value.isascii() or _is_mixed(value)
    if value.isdigit():
        return False
    if _UUID.fullmatch(value):
        return True
    if has_lower and has_upper:
        return True
    if _RFC1123.fullmatch(value) and not value.isalnum():
        return False  # a name in Kubernetes, a version, a date
    return has_lower or has_upper


def _is_mixed(value: str) -> bool:
    words = re.split(r"[^A-Za-z]+", value)
    return len(value) >= _LONG and not all(_CAMEL.fullmatch(word) or word.isupper() for word in words if word)


def is_made_up(value: str) -> bool:
    """Whether a word of a sentence is none of its language: letters and digits in one."""
    return (
        len(value) >= _MIN_MADE_UP
        and any(map(str.isdigit, value))
        and any(map(str.isalpha, value))
        and not _TECHNICAL.fullmatch(value)
        and not (_RFC1123.fullmatch(value) and not value.isalnum())
    )


def is_prose(text: str, *, is_quoted: bool = False) -> bool:
    """Whether several words are a sentence, rather than a passphrase."""
    words = [word.lower() for word in _WORDS.findall(text)]
    return len(words) > 1 and sum(word in _PROSE for word in words) > is_quoted
