"""One server of a configuration file, in the keys of `ServerConfig`.

Owns applying the rules of a file's dialects to an entry, and remembers where each value came from, so that an error
shows the spelling of the file. It checks no values.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from pydantic import JsonValue

from tarsy_tasks.config.auth import without_auth_type
from tarsy_tasks.config.key_rules import Place, Rule, Taken, Unused
from tarsy_tasks.config.own_keys import OWN_KEYS
from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, format_path, unknown_key
from tarsy_tasks.config.variables import FIELDS, convert_texts

__all__ = ["ServerEntry"]

_OF_STDIO = ("command", "args", "env", "variables_file", "cwd", "inherit_env", "sandbox")
_NO_ENVIRONMENT = "a server over HTTP gets no environment"
_OF_HTTP = ("url", "headers", "auth", "verify_ssl", "ca_file")


class ServerEntry:
    """One server of a file, in the keys of `ServerConfig`.

    Args:
        name: As the file has it.
        at: The place of the entry.
        raw: The entry, without its name.
        rules: What keys mean that are not our own; they precede those.
        convert: Converts each text with references.

    Attributes:
        name: The name in the file, which need not be an id; None when the entry has no valid one.
        at: The place of the entry.
        values: Its values, without the name.
        problems: Problems with its keys.
        unused: Its keys without a meaning here.
    """

    def __init__(
        self,
        name: JsonValue,
        at: KeyPath,
        raw: Mapping[str, JsonValue],
        rules: Mapping[str, Rule],
        convert: Callable[[str], str],
    ) -> None:
        self.name = name if isinstance(name, str) else None
        self.at = at
        self.values: dict[str, JsonValue] = {}
        self.problems: list[Problem] = []
        self.unused: list[Unused] = []
        self._origins: dict[KeyPath, KeyPath] = {}
        if name is None:
            self.problems.append(Problem((*at, "name"), "this key is required, but missing"))
        elif not isinstance(name, str):
            self.problems.append(Problem((*at, "name"), f"found {describe_kind(name)}, expected a string"))
        # Deeper places last: they add to the mappings of others.
        for taken in sorted(self._read(raw, rules), key=lambda taken: len(taken.place)):
            self._take(taken)
        self._leave_out_empty()
        self._convert(convert)
        self._fold_environment()
        self._leave_to_program()

    def locate(self, loc: KeyPath) -> KeyPath:
        """The place in the file of the value at a place of a `ServerConfig`."""
        loc = without_auth_type(loc)
        for length in range(len(loc), 0, -1):
            if (origin := self._origins.get(loc[:length])) is not None:
                return origin + loc[length:]
        return self.at + loc

    def take_defaults(self, defaults: Iterable[Taken]) -> None:
        """Take what the entry itself does not say, as far as it belongs to its transport."""
        foreign = _OF_HTTP if self.values.keys() & {"command", "native"} else _OF_STDIO
        for taken in sorted(defaults, key=lambda taken: len(taken.place)):
            if taken.place[0] not in foreign and self._find(taken.place) is None:
                self._take(taken)

    def _read(self, raw: Mapping[str, JsonValue], rules: Mapping[str, Rule]) -> list[Taken]:
        taken: list[Taken] = []
        for key, value in raw.items():
            where = (*self.at, key)
            rule = rules.get(key) or OWN_KEYS.get(key)
            if rule is None:
                if not is_comment(key):
                    self.problems.append(unknown_key(where, OWN_KEYS, also=rules))
                continue
            for found in rule(value, where) if value is not None else ():
                match found:
                    case Taken():
                        taken.append(found)
                    case Unused():
                        self.unused.append(found)
                    case Problem():
                        self.problems.append(found)
        return taken

    def _find(self, place: Place) -> JsonValue:
        value: JsonValue = self.values
        for key in place:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def _take(self, taken: Taken) -> None:
        table = self.values
        for key in taken.place[:-1]:
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                return  # reported when the values are checked
            table = inner
        key, value = taken.place[-1], taken.value
        if key not in table:
            # A copy, because keys may be added: with a YAML anchor, the same mapping is in several places.
            table[key] = dict(value) if isinstance(value, dict) else value
            self._origins |= {taken.place: taken.where, **taken.parts}
        elif table[key] != value:
            other = format_path(self.locate(taken.place))
            self.problems.append(Problem(taken.where, f"conflicts with `{other}`; keep only one of them"))

    def _leave_out_empty(self) -> None:
        """Forms write empty texts for what was not filled in."""
        for key, instead in (("url", "command"), ("command", "url"), ("cwd", "command"), ("cwd", "url")):
            if self.values.get(key) == "" and self.values.get(instead):
                del self.values[key]
        if self.values.get("description") == "":
            del self.values["description"]

    def _convert(self, convert: Callable[[str], str]) -> None:
        for field in FIELDS:
            if field in self.values:
                self.values[field] = convert_texts(self.values[field], (), lambda text, _: convert(text))

    def _fold_environment(self) -> None:
        """Over HTTP there is no environment; some clients replace variables in headers by it."""
        if "url" not in self.values or "command" in self.values:
            return
        if "variables_file" in self.values:
            self.unused.append(Unused(self.locate(("variables_file",)), _NO_ENVIRONMENT))
            del self.values["variables_file"]
        env = self.values.get("env")
        if not isinstance(env, dict) or not env:
            return
        where = self.locate(("env",))
        given = {f"${{{name}}}": value for name, value in env.items() if value != f"${{{name}}}"}
        known = {reference: value for reference, value in given.items() if isinstance(value, str)}

        def fill_in(text: str, _: KeyPath) -> str:
            for reference, value in known.items():
                text = text.replace(reference, value)
            return text

        before = dict(self.values)
        for field in ("url", "headers", "auth"):
            if field in self.values:
                self.values[field] = convert_texts(self.values[field], (), fill_in)
        if given and before == self.values:
            self.unused.append(Unused(where, _NO_ENVIRONMENT))
        del self.values["env"]

    def _leave_to_program(self) -> None:
        """`mcp-remote` itself replaces variables in its arguments, so that no secret is on the command line."""
        args, env = self.values.get("args"), self.values.get("env")
        if not isinstance(args, list) or not isinstance(env, dict):
            return
        if any(isinstance(each, str) and re.fullmatch(r"mcp-remote(?:@.*)?", each) for each in args):
            names = "|".join(map(re.escape, env))
            own = re.compile(rf"(?<!\$)(?=\$\{{(?:{names})\}})") if names else re.compile(r"(?!)")
            self.values["args"] = [own.sub("$", each) if isinstance(each, str) else each for each in args]


def is_comment(key: str) -> bool:
    """Whether a key is a comment, where a file may have no other."""
    return key.startswith(("_", "//", "#")) or key.lower() in ("comment", "comments", "$comment")
