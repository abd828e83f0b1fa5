"""Secrets at a fixed position in a line or statement, without a name: `AUTH bob x`.

Owns the table of such lines. `assignments` reads options and settings with a name; `commands` has the arguments of
programs.
"""

from collections.abc import Callable

from tarsy_tasks.masking.names import STEMS, Strength
from tarsy_tasks.masking.rules import read_table
from tarsy_tasks.masking.rules.vocabulary import PROSE_WORDS
from tarsy_tasks.masking.values import is_made_up, is_prose, is_secret, looks_random

__all__ = ["ANNOUNCED", "JUDGES", "VALUE_BEFORE_NAME", "is_announced_secret"]

_BEGIN = r"(?m:^|[\"'`>]|[:\]][ \t])[ \t]*"
"""Of a line, of a quoted text, after a prompt, or after the prefix of a log line."""
_LINE = r"(?m:^|[\"'`])[ \t]*"
_END = r"[ \t\r]*(?m:[\"'`\\]|$)"
_W = r"[ \t]+"
_Q = r"\\*[\"']"
_FIELD = r"[ \t]+\w+:[ \t]+[^\n]+"
_RULES = r"(?:[ \t]+(?:on|off|reset\w*|all\w+|[+\-~&%@]\S*|\(\S*))*"
_TOLD = (
    "password|passwd|passphrase|passcode|passwort|kennwort|token|secret|api[ -]key|(?:access|secret)[ -]key"
    "|(?:reset|access|activation|pairing)[ -]code"
)
_CODE_OF = r"one-time|verification|security|login|sign-in|2fa|mfa|otp|authentication|confirmation"
_PIPE = r"\\*[\"']?[ \t]*\|[ \t]*(?:sudo[ \t]+)?"

LINES = read_table(rf"""
    AWS, as text: \bSecureString[ \t]*[\t|][ \t]*([^\s|\\]+)
        \b(?:AKIA|ASIA)[A-Z0-9]{{16}}[\"']?[ \t\r\n,:;|]+[\"']?([A-Za-z0-9+/]{{40}})\b
        \t\d{{4}}-\d\d-\d\dT[\d:.+Z]+\t([A-Za-z0-9+/]{{40}}(?:\t[A-Za-z0-9+/=]{{100,}})?)
    Redis: \b(?:(?i:setuser){_W}\S+|user{_W}\S+{_W}(?:on|off)){_RULES}{_W}[><#!](\S+)
        (?i:\bhello){_W}[23]{_W}(?i:auth){_W}\S+{_W}(\S+)
        \b(?i:auth2){_W}\S+{_W}(\S+)
        \bauth-pass{_W}\S+{_W}(\S+)
        \bAUTH\r?\n(?:\$\d+\r?\n[^\n]*\n)?\$\d+\r?\n([^\r\n]+)
    SMTP: {_BEGIN}AUTH{_W}PLAIN{_W}([A-Za-z0-9+/]{{8,}}={{0,2}})
        334 UGFzc3dvcmQ6\s+(?:[^\n]*[>:][ \t]+)?([A-Za-z0-9+/]{{4,}}={{0,2}})
    FTP, POP3: (?:331[ -][^\n]*|USER [^\n]*|\+OK[^\n]*)\r?\n[^\n]*?PASS[ \t]+(\S+)
    Cisco and alike: \b(?:radius|tacacs)(?:-server)?\b[^\n]*?{_W}key{_W}(?:\d{_W})?(\S+)
        \bcrypto{_W}(?:isakmp|ike\w*){_W}key{_W}(?:[06]{_W})?(\S+)
        \b(?:message-digest-key{_W}\d+{_W}md5|authentication-key|key-string|wpa-psk{_W}(?:ascii|hex)){_W}
            (?:\d{_W})?\"?([^\s\"]+)
        \bpre-shared-key{_W}(?:(?:ascii-text|hexadecimal|local|remote){_W})*\"?([^\s\"]+)
        \b(?:psksecret|passwd|password|secret|key){_W}ENC{_W}(\S+)
    SNMP: \bsnmp-server{_W}community{_W}(?:[07]{_W})?(\S+)
        {_LINE}r[ow]community6?{_W}(\S+)
        \bcreateUser{_W}\S+{_W}(?:MD5|SHA[\w\-]*){_W}\"?([^\s\"]+)
    strongSwan, PPP: :{_W}(?:PSK|EAP|XAUTH|NTLM){_W}\"([^\"\n]+)\"
    Postfix: {_LINE}\[[\w.\-]+\](?::\d+)?{_W}[^\s:\"]+:([^\s\"\\][^\n\"\\]*)
        \bstatic:[^\s:]+:(\S+)
    Kickstart, preseed: \brootpw{_W}(?:--\w+{_W})*([^\s\-]\S*)
        \bd-i{_W}\S*(?:wpa|wep|password\S*|passwd\S*){_W}(?:string|password){_W}(\S+)
    Windows: (?i:(?:passw(?:or)?d|secret|token|apikey)\w*){_W}REG_\w+{_W}(\S+)
        \bKey Content[ \t]*:[ \t]*(\S[^\n\"\\]*)
        (?i:env:\w*{STEMS}\w*)[\"']?{_W}-(?i:value){_W}[\"']([^\"'\n]+)[\"']
        (?i:convertto-securestring){_W}(?:-(?i:string){_W})?[\"']([^\"'\n]+)[\"']
    expect: (?i:expect[^\n]*p?ass(?:word|phrase|code)[^\n]*)\n[ \t]*(?:\w+\.)?send(?:line)?[\w]*[ \t(]+
            (?:--[ \t]+)?[\"']([^\"'\\\n]+)
    Erlang: \{{[ \t]*'?\w*(?:pass|password|secret|token|cookie)'?[ \t]*,[ \t]*(?:<<)?\\*\"([^\"\n\\]+)
    JAAS: \buser_\w+=\\*\"([^\"\n\\]+)
    SQL: (?i:\bset[ \t]+password\b)[^=\n;]*=[ \t]*(?i:password[ \t]*\([ \t]*)?[\"']([^\"'\n]+)
        (?i:\bconn(?:ect)?){_W}[\w$#]+/\"?([^\s@\"/]+)\"?@
    Consul: \bencrypt[ \t]*[=:][ \t]*\\*\"([A-Za-z0-9+/]{{22,}}={{0,2}})
        \b(?:initial_management|agent|default|replication|agent_recovery)[ \t]*=[ \t]*\\*\"([0-9a-f]{{8}}-
            [0-9a-f\-]{{27}})\\*\"
    PagerDuty: \b(?:routing|service|integration)_key\\*[\"']?[ \t]*[:=][ \t]*\\*[\"']?([0-9A-Za-z]{{32}})\b
    Kubernetes: --certificate-key[ \t=]+(\S+)
    Azure: (?i:\bprimary_?key)[\"']?[ \t]*[:=][ \t]*[\"']?([A-Za-z0-9+/]{{43,}}={{1,2}})
        \baccount\.key\.[\w.\-]+[ \t]*[=:][ \t]*(\S+)
    curl, as a library: \bCURLOPT_(?:PROXY)?USERPWD\b[^\n\"']*[\"'][^\"':\n]+:([^\"'\n]+)
    HAProxy: \bstats{_W}auth{_W}[^\s:]+:(\S+)
    Terraform: resource[ \t]+\\*\"random_password\\*\"[^{{]+\{{[^}}]*?\bresult[ \t]*=[ \t]*\\*\"([^\"\n\\]+)
        \b(?:value|default)[ \t]*=[ \t]*\\*\"([^\"\n\\]+)\\*\"[ \t]*\r?\n
            (?:[^}}\n]*\n)*?[ \t]*sensitive[ \t]*=[ \t]*true
    PHP: [\"'](?i:[\w\-]*(?:passw(?:or)?d|pwd|secret|token|api_?key))[\"']\]=>\s+string\(\d+\) \"([^\"\n]+)\"
    Ruby: :(?:\w*_)?(?:password|passphrase|secret|token|api_key)[ \t]*,[ \t]*[\"']([^\"'\n]+)[\"']
    a message with a code: (?i:\b(?:{_CODE_OF})[ \-](?:pass)?code(?:[ \t]+is|:|[ \t]+is:)?[ \t]+)(\d{{4,8}})\b
    Google: (?i:\bapp(?:lication)?[ -]password\b)[^\n:=]*[:=][ \t]+([a-z\d]{{4}}(?: [a-z\d]{{4}}){{3}})\b
    auditd: \ba0=\"(?:mysql|mariadb)\w*\"[^\n]*[ \t]a\d+=\"-p([^\"\n]+)\"
    a pipe: \becho{_W}(?:-n{_W})?[\"']?[\w.\-]+:([^\"'|\n]+?){_PIPE}chpasswd\b
        \b(?:echo|printf){_W}(?:-n{_W})?\\*[\"']?([^\"'|\n\\]+?){_PIPE}(?:sudo{_W}-S|-S\b|[^\n|]+--?
            (?:password|pass|passphrase|token)-(?:stdin|fd)|cryptsetup\b|passwd\b|kinit\b|smbpasswd\b|gh auth login)
    a command that tells a password: --?pass(?:word|phrase)?-(?:command|cmd)[ \t=]+\\*[\"']?(?:echo|printf){_W}
            (?:-n{_W})?[\"']?([^\s\"'\\|;]+)
    a here string: \b(?:wrangler|kinit|gh|passwd|cryptsetup|vault|docker)\b[^\n|;]+<<<[ \t]*[\"']?([^\"'\n]+)
""")
"""Source → the text around its secret, which is the group."""

CLUES = read_table(rf"""
    CloudFormation: \bNoEcho:{_W}[\"']?true[\"']?[ \t\r]*\n(?:{_FIELD}\n){{0,6}}?[ \t]+Default:{_W}[\"']?([^\s\"']+)
        \bDefault:{_W}[\"']?([^\s\"']+)[\"']?[ \t\r]*\n(?:{_FIELD}\n){{0,6}}?[ \t]+NoEcho:{_W}[\"']?true
    Terraform: resource[ \t]+\\*\"\w+\\*\"[ \t]+\\*\"[\w\-]*{STEMS}[\w\-]*\\*\"[ \t]+\{{[^}}]*?\b
            (?:value|secret_string|content|result)[ \t]*=[ \t]*\\*\"([^\"\n\\]+)
        resource[ \t]+\\*\"\w+\\*\"[ \t]+\\*\"[\w\-]*{STEMS}[\w\-]*\\*\"[ \t]+\{{[^}}]*?\binsecure_value[ \t]*=
            [ \t]*\\*\"([^\"\n\\]+)
    Pulumi: {_LINE}[\w\-]+:\w*{STEMS}\w*{_W}(\S+){_END}
    Redis: {_BEGIN}(?i:auth){_W}[\w.@\-]+{_W}([^\s\"'`]+){_END}
        {_Q}(?i:auth){_Q}(?:{_W}{_Q}[\w.@\-]+{_Q})?{_W}{_Q}([^\"'\n\\]+)
    IMAP, IRC: {_BEGIN}\w{{1,8}}{_W}LOGIN{_W}\S+{_W}\\*\"?([^\s\"\\]+)
        \bIDENTIFY{_W}(?:\S+{_W})?(\S+)
    Cisco and alike: \b(?:password|secret|key){_W}[05-9]{_W}(\S+)
        (?m:^){_W}key{_W}(?:\d{_W})?(\S+){_END}
        \bauthentication{_W}(?:text|md5{_W}key-string){_W}(\S+)
    pgbouncer: {_LINE}\\*\"[\w.\-]+\\*\"{_W}\\*\"([^\"\n\\]{{6,}})\\*\"{_END}
    Elasticsearch: {_LINE}PASSWORD{_W}\w+{_W}={_W}(\S+)
        \bNew value:{_W}(\S+)
    RabbitMQ: (?i:erlang[ _\-]?cookie)[\"']?[ \t]*[:=][ \t]*[\"']?(\w{{16,}})
    a shell: <\([ \t]*(?:echo|printf)[ \t]+(?:-n[ \t]+)?[\"']?([^\"')\n]+?)[\"']?[ \t]*\)
    FTP: {_LINE}user{_W}[\w.\-]+{_W}(\S+){_END}
    SNMP: \bauth{_W}(?:md5|sha[\w\-]*){_W}(\S+)
        \bpriv{_W}(?:aes|des|3des)[\w\-]*{_W}(?:\d+{_W})?(\S+)
        \b(?:AES|DES)(?:-?\d+)?[ \t]+\\*\"([^\"\n\\]{{8,}})
    PPP: {_LINE}\"?[\w.@\\\-]+\"?{_W}\*{_W}\"?([^\s\"*]+)\"?{_W}\*{_END}
    Postfix: {_LINE}[\w.\-]+(?::\d+)?{_W}[\w.+\-]+@[\w.\-]+:([^\s\"\\]+){_END}
    WordPress: \bdefine\([ \t]*[\"'](?:(?:SECURE_)?AUTH|LOGGED_IN|NONCE)_
            (?:KEY|SALT)[\"'][ \t]*,[ \t]*[\"']([^'\n]{{8,}})[\"']
    SQL: (?i:\b(?:crypt|encrypt|(?:old_)?password|pgp_sym_encrypt|aes_encrypt)\()'([^'\n]+)'
    people: (?i:\b(?:log-?in|user(?:name)?|creds|credentials|access)\b(?:[ \t]+
            (?:is|are|with|as))?[ \t]*[:=]?[ \t]*)[\w.@\-]+(?:[ \t]*/[ \t]*|:|[ \t]*,?[ \t]+(?i:pass
            (?:word)?|pw|pwd)[ \t]*[:=]?[ \t]+)([^\s/()\"'<>]+)
        (?i:\b(?:{_TOLD})\b)(?:{_W}[\w'\-]+){{1,6}}{_W}(?i:is|was)[ \t:]+[\"'`]?([^\s\"'`]*[^\s\"'`.,;])
        (?i:\b(?:{_TOLD}|pw|pwd)\b)[^\n:=]{{0,40}}?[ \t]from[ \t]+[\"'`]?([^\s\"'`]+)[\"'`]?[ \t]+to\b
        \b(?:as|with|is|are)[ \t]+(?:admin|root|administrator)/([^\s/()\"'<>]+)
        (?:^|[\s\"'=(])(?:admin|root|user|app|svc|deploy|guest|test|postgres|sa|ftp|backup)[\w.\-]*:(
            [^\s:@/\"'<>]{{6,}})@(?:[\w\-]+\.)+[A-Za-z]{{2,}}\b
        \b(?:admin|root|administrator|user|guest|demo|test|sa|postgres|app)[ \t]+/[ \t]+(\S+)[ \t\r]*(?m:[,;).\\]|$)
""")
"""The same for weak signs: the group must look like a secret."""

VALUE_BEFORE_NAME = (
    rf"(?m:^)[ \t]*(?:-{_W})?[\"']?value[\"']?:{_W}([^\n]+)\n[ \t]+[\"']?(?:name|key)[\"']?:{_W}[\"']?[\w.\-]*{STEMS}"
)
"""`- value: x`, and in the next line `name: PASSWORD`."""
ANNOUNCED = rf"(?i:\b(?:{_TOLD}))[ \t][^\n:=\"'{{}}\[\]|]+:[ \t]+[\"'`]?([^\s\"'`]+)[\"'`.]?[ \t\r]*(?m:\\|$)"
"""`A password was generated for bob: x`."""

PHRASE = (
    r"(?i:\b(?:pass|seed|recovery|backup|secret)?[ \-]?(?:phrase|mnemonic)\b)[^\n:.=\"']{0,40}"
    r"(?:[ \t](?:is|to|was|are)[ \t]*:?|:)[ \t]+[\"'`]?((?:[a-z]{3,9}[ \-]){3,23}[a-z]{3,9})[\"'`.]?[ \t\r]*(?m:$)"
)
"""`I set the passphrase to: dolphin hazel walnut rocket`."""

_ARG = r"[^,\n()]*,"
_CALLED = (
    r"(?i:login|\.auth|basic_?auth|bind(?:_s)?|authenticate|getconnection|usernamepasswordcredentials?"
    r"|passwordauthentication|setbasicauth|change(?:user)?password|setcredentials|credentials\w*)"
)
CALLS = read_table(rf"""
    calls: {_CALLED}\([^()\n]*,[ \t]*\\*[\"']([^\"'\n]+){_Q}[ \t]*\)
        \b(?:pymysql|MySQLdb|mysql|psycopg2?|mysqli|PDO)[\w.>:\-]*\([ \t]*
            (?:[\"'][^\"'\n]*[\"'][ \t]*,[ \t]*){{2}}[\"']([^\"'\n]+)[\"']
        \b(?:(?:NetworkCredential|cx_Oracle\.connect|oracledb\.connect)\({_ARG}|PlainAuth\({_ARG}{_ARG})[ \t]*\"(
            [^\"\n]+)\"
        \b(?i:\w*connect|ldap_bind|ftp_login|ssh2_auth_password|imap_open|create_?connection|__construct|new
            [ \t]+\w+(?:client|connection|credentials?|auth))\(
            (?:[^,\n()]*,[ \t]*)+{_Q}[\w.@\-]+{_Q}[ \t]*,[ \t]*[\"']([^\"'\n]+)[\"']
        \b(?:Buffer\.from|btoa|b64encode|base64_encode|[eE]ncodeToString|GetBytes|(?:strict_|urlsafe_)?encode64)\(
            (?:\[\]byte\()?b?[\"'][\w.@\-]+:([^\"'\n]+)[\"']
        \b(?:echo|printf)[ \t]+(?:-n[ \t]+)?[\"']?[\w.@\-]+:([^\s\"'|]+)[\"']?[ \t]*\|[ \t]*base64\b
        \b(?:SymmetricSecurityKey|SecretKeySpec|hmacShaKeyFor|hmac\.new|Fernet|SecretBox)\([^\"'\n]*[\"']([^\"'\n]+)
        \b(?i:jwt)\.(?:sign|verify|encode|decode)\([^\"'\n]*[\"']([^\"'\n]+)
        \bcreateHmac\([\"'][\w\-]+[\"'][ \t]*,[ \t]*[\"']([^\"'\n]+)
        \bprovider[ \t]+:\w+,[ \t]*[\"'][^\"'\n]*[\"'],[ \t]*[\"']([^\"'\n]+)
        \bCredentials\.new\([^,\n]*,[ \t]*[\"']([^\"'\n]+)
        \.authenticate!?\([\"']([^\"'\n]+)[\"']\)
""")
"""Functions that take a name and a password."""


def is_some_secret(value: str) -> bool:
    """Whether a value at such a position is not one of the words that mean "none"."""
    return (
        is_secret(value, Strength.STRONG, is_quoted=True) and value != "public" and not is_prose(value, is_quoted=True)
    )


def is_announced_secret(value: str) -> bool:
    """Whether it also looks like a secret."""
    value = value.rstrip(".,;")
    is_some = looks_random(value) or is_made_up(value) or (" " in value and any(map(str.isdigit, value)))
    return is_some and is_some_secret(value)


def is_phrase(value: str) -> bool:
    """Whether it is several words, but not a sentence."""
    return PROSE_WORDS.isdisjoint(value.split()) and is_some_secret(value)


JUDGES: tuple[tuple[dict[str, list[str]], Callable[[str], bool]], ...] = (
    (LINES, is_some_secret),
    (CLUES, is_announced_secret),
    (CALLS, is_announced_secret),
    ({"a phrase": [PHRASE]}, is_phrase),
)
