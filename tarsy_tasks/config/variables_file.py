"""Files of variables, with lines `NAME=value`, as clients know them as `.env`.

Owns reading one. Its values are literal: a `$` in them refers to nothing.
"""

import os
import re
from io import StringIO

from dotenv.parser import parse_stream

from tarsy_tasks.secret_files import read_secret_file

__all__ = ["read_variables_file"]

_TOO_MANY_BLANKS = re.compile(r"[^\S\r\n]{256}")
"""In a value without quotes, the parser needs time for the square of their number: 15 s for 64 kB of them."""


def read_variables_file(path: str) -> dict[str, str]:
    """The variables of a file, by name. Quotes, comments and `export` are understood; a name without `=` is ignored.

    Raises:
        ValueError: It cannot be read, or a line is not valid. The text shows nothing of the content.
    """
    found: dict[str, str] = {}
    path = os.path.abspath(path)  # noqa: PTH100  for the text of an error; it is a path, not a secret in its place
    text = read_secret_file(path, "lines `NAME=value`", may_be_empty=True)
    if blanks := _TOO_MANY_BLANKS.search(text):
        line = text.count("\n", 0, blanks.start()) + 1
        raise ValueError(f"{path}: line {line} has more than 255 blanks in a row; shorten them")
    for each in parse_stream(StringIO(text)):
        if each.error:
            raise ValueError(f"{path}: line {each.original.line} is not valid; expected `NAME=value`")
        if each.key and each.value is not None:
            found[each.key] = each.value
    return found
