# Pattern and Match are not public at run time.
from collections.abc import Iterator
from enum import Enum
from typing import Generic, TypeVar

_T = TypeVar("_T", str, bytes)

class error(Exception): ...

class Options:
    class Encoding(Enum):
        UTF8 = 1
        LATIN1 = 2

    max_mem: int
    encoding: Encoding
    log_errors: bool
    never_capture: bool

class Match(Generic[_T]):
    lastindex: int | None
    def start(self, group: int = 0) -> int: ...
    def end(self, group: int = 0) -> int: ...
    def span(self, group: int = 0) -> tuple[int, int]: ...

class Pattern:
    groups: int
    programsize: int
    def search(self, text: _T, pos: int | None = None, endpos: int | None = None) -> Match[_T] | None: ...
    def match(self, text: _T, pos: int | None = None, endpos: int | None = None) -> Match[_T] | None: ...
    def finditer(self, text: _T, pos: int | None = None, endpos: int | None = None) -> Iterator[Match[_T]]: ...

def compile(pattern: str | bytes, options: Options | None = None) -> Pattern: ...  # noqa: A001
def escape(pattern: str) -> str: ...
