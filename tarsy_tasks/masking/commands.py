"""Secrets in arguments of programs whose options have no telling name: `mysql -pX`, `curl -u bob:X`.

Owns the table of programs. Options such as `--password X` need no table: `assignments` reads them.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.search import Search
from tarsy_tasks.masking.values import is_secret

__all__ = ["ARRAYS", "COMMANDS", "find_in_commands", "is_program"]

_LINE_LIMIT = 1024
_CONTINUED = frozenset("\\`^")
_VALUE = r"(?:'([^'\n]+)'|\"([^\"\n]+)\"|([^\s'\"|;&<>]++))"
_P_ATTACHED = rf"[ \t]-p(?!assword\b|ort\b){_VALUE}"
_P = rf"[ \t]-p(?!assword\b|ort\b|ro\w+)[ \t=]*+{_VALUE}"
_UPPER_P = rf"[ \t]-P[ \t=]*+{_VALUE}"
_USER = rf"[ \t](?:-u|--user|--proxy-user|-U)[ \t=]*+(?:[\"'](?=[^\s:]))?[^\s:\"'%]+[:%]{_VALUE}"

PROGRAMS: dict[str, str] = {
    r"az[ \t]+keyvault[ \t]+secret[ \t]+set": rf"[ \t]--value[ \t=]++{_VALUE}",
    r"(?:mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump|mysqlsh)": _P_ATTACHED,
    r"(?:docker|podman|nerdctl|crane|skopeo|buildah|helm|oras)[ \t](?:[a-z]+[ \t])?login": _P,
    r"(?:az|oc|twine|sshpass|mongo|mongosh|mongodump|mongorestore|argocd|influx|nats|etcdctl|cqlsh|cypher-shell|beeline"
    r"|rabbitmqadmin)": _P,
    r"(?i:psexec)(?:\.exe)?": _P,
    r"(?:sqlcmd|bcp|mosquitto_pub|mosquitto_sub|ipmitool|zip|unzip|tsm)": _UPPER_P,
    r"(?:curl|wget|smbclient|rpcclient|etcdctl)": _USER,
    r"(?:https?|httpie|xh)": rf"[ \t](?:-a|--auth)[ \t=]*+(?:[\"'](?=[^\s:]))?[^\s:\"']+:{_VALUE}",
    r"redis-cli": rf"[ \t](?:-a|--pass)[ \t=]*+{_VALUE}",
    r"(?:ldapsearch|ldapadd|ldapmodify|ldapdelete|ldapwhoami|ldappasswd)": rf"[ \t]-w[ \t]*{_VALUE}",
    r"(?:7z|7za|rar|unrar)": rf"[ \t]-p{_VALUE}",
    r"openssl": rf"[ \t](?:-pass(?:in|out)?[ \t]+pass:|-[kK][ \t]+){_VALUE}",
    r"rabbitmqctl": rf"[ \t](?:add_user|change_password)[ \t]+\S+[ \t]+{_VALUE}",
    r"htpasswd": rf"[ \t]-(?=\w*b)(?:(?=\w*n)\w++|\w++[ \t]+\S+)[ \t]+\S+[ \t]+{_VALUE}",
    r"(?:flyctl|fly)": rf"[ \t](?:-t|--access-token)[ \t=]*+{_VALUE}",
    r"xfreerdp": rf"[ \t]/p:{_VALUE}",
    r"gh[ \t]+secret[ \t]+set": rf"[ \t](?:-b|--body)[ \t=]*+{_VALUE}",
    r"aws[ \t]+ssm[ \t]+put-parameter": (
        rf"[ \t]--value[ \t=]++{_VALUE}(?=.*SecureString)|SecureString.*?[ \t]--value[ \t=]++{_VALUE}"
    ),
    r"pulumi[ \t]+config[ \t]+set": rf"[ \t]--secret[ \t]+\S+[ \t]+{_VALUE}",
    r"kubectl[ \t]+create[ \t]+secret": rf"[ \t]--from-literal[ \t=]+[\w.\-]+={_VALUE}",
    r"net[ \t]+use": rf"[ \t](?:\\\\\S+(?:[ \t]+/user:\S+)?|/user:\S+)[ \t]+{_VALUE}",
    r"net[ \t]+user": rf"(?<=user)[ \t]+\w\S*[ \t]+{_VALUE}",
    r"snmp(?:walk|get|getnext|set|bulkwalk|bulkget|table|trap|inform)": rf"[ \t]-[cAX][ \t]*(?!public\b){_VALUE}",
    r"ssh-keygen": rf"[ \t]-[NP][ \t]+{_VALUE}",
    r"(?:nsupdate|dig)": rf"[ \t]-y[ \t]+(?:hmac-\w+:)?[\w.\-]+:{_VALUE}",
    r"lftp": rf"[ \t]-u[ \t]*[^\s,]+,{_VALUE}",
    r"(?:sqlplus|rman|expdp|impdp|sqlldr)": r"[ \t](?:userid=)?[\"']?[\w$#]+/\"?([^\s@/\"']+)",
    r"mc[ \t]+(?:alias[ \t]+set|config[ \t]+host[ \t]+add)": r"[ \t]\S+[ \t]+https?://\S+[ \t]+(\S+[ \t]+\S+)",
    r"rclone[ \t]+obscure": rf"(?<=obscure)[ \t]+{_VALUE}",
}
"""Program → the option with a secret. Of two for the same program, the first applies."""

_options = [re.compile(option) for option in PROGRAMS.values()]
COMMANDS = tuple(rf"\b{program}[ \t]" for program in PROGRAMS)
"""The programs as in a command line."""
_SINGLE = "|".join(program for program in PROGRAMS if "[ " not in program)
ARRAYS = rf"\"(?:[^\"\s]*/)?(?:{_SINGLE})\\*\"\s*,"
"""The same, as the first item of a list of arguments in JSON."""

_search = Search(COMMANDS)
_PROGRAM = re.compile(rf"(?:\S*/)?(?:{_SINGLE})")
_OPTION_LIKE = re.compile(r"-|\d{2,5}:\d{2,5}$|/dev/|/")


def is_program(word: str) -> bool:
    """Whether a list that begins with a word may be a command line."""
    return _PROGRAM.fullmatch(word) is not None


def find_in_commands(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right; `projection` is `search.project(text)`."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        index, _, position = found
        end = _end_of_command(text, position)
        for option in _options[index].finditer(text, position - 1, end):
            group = option.lastindex or 0
            value = option[group]
            is_option = text[option.start(group) - 1] in " \t=" and _OPTION_LIKE.match(value)
            if not is_option and is_secret(value, Strength.STRONG, is_quoted=True):
                yield Edit(*option.span(group))
                position = max(position, option.end(group))


def _end_of_command(text: str, position: int) -> int:
    """The end of its line, and of its continuation lines."""
    limit = position + _LINE_LIMIT
    line_end = text.find("\n", position, limit)
    while line_end > 0 and text[line_end - 1] in _CONTINUED:
        line_end = text.find("\n", line_end + 1, limit)
    return line_end if line_end >= 0 else limit
