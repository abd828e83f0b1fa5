"""A browser without scripts, for what a page answers to each request."""

import base64
import re
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

__all__ = ["Visitor"]


class Visitor:
    """A browser that opens one page, and sends its form."""

    def __init__(self, url: str, credentials: str = "") -> None:
        self._url = url
        self._headers = {"Cookie": "_xsrf=0123"}
        if credentials:
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"

    def get(self) -> tuple[int, str]:
        return self._ask(None)

    def preview(self, method: str, **parameters: str) -> int:
        """What who only looks at a link may send, with a form's values in the address; the status of the answer."""
        address = f"{self._url}{'&' if '?' in self._url else '?'}{urlencode(parameters)}"
        return self._ask(None, Request(address, headers=self._headers, method=method))[0]

    def decide(self, decision: str, *, token: str = "0123", digest: str = "", **fields: str) -> tuple[int, str]:
        return self._ask({"decision": decision, "_xsrf": token, "digest": digest or self.digest(), **fields})

    def digest(self) -> str:
        """Of what its page asks for."""
        found = re.search(r'name="digest" value="(\w+)"', self.get()[1])
        return found[1] if found else "x"

    def _ask(self, form: dict[str, str] | None, request: Request | None = None) -> tuple[int, str]:
        data = None if form is None else urlencode(form).encode()
        try:
            answer = urlopen(request or Request(self._url, data=data, headers=self._headers), timeout=20)
        except HTTPError as error:
            answer = error
        with answer:
            return answer.status or 0, answer.read().decode()
