"""The templates of the pages, and their script and style: ours, and Flower's templates with links to the MCP pages.

Owns the places where something is added to Flower's templates when they are loaded; none is copied. A version of Flower
whose templates lack such a place is refused.
"""

import hashlib
import re
from functools import cache
from pathlib import Path

from tornado.escape import to_unicode, xhtml_escape
from tornado.template import Loader, Template

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["ADDITIONS", "STATIC_PATH", "PageTemplates", "asset_version", "escape_visibly"]

_HARMLESS = re.compile(rb"[A-Za-z0-9_ .,:;/%+-]*")
_OURS = Path(__file__).parent / "templates"
STATIC_PATH = Path(__file__).parent / "static"

ADDITIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "navbar.html": (
        (
            ">Broker</a>\n        </li>\n",
            """        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'mcp' %} active{% end %}" href="{{ reverse_url('mcp') }}"
            {% if active_tab == 'mcp' %}aria-current="page"{% end %}>MCP</a>
        </li>
""",
        ),
    ),
    "task.html": (
        (
            '<div class="detail-actions">\n',
            """{% if getattr(task, 'is_mcp_call', False) %}
      <a class="btn btn-outline-primary"
        href="{{ reverse_url('mcp-call', task.uuid) }}?near={{ int(task.timestamp or 0) }}">MCP call</a>
      {% end %}
""",
        ),
        (
            "    </div>\n  </header>\n",
            """{% if getattr(task, 'is_mcp_call', False) and task.state == 'SUCCESS' and task.result != 'ok' %}
  <div class="alert alert-warning" role="status" id="mcp-banner">
    This tool call ended with <strong>{{ task.result }}</strong>. Celery's SUCCESS says that the worker answered it:
    a failed call is a successful task.
    <a class="alert-link"
      href="{{ reverse_url('mcp-call', task.uuid) }}?near={{ int(task.timestamp or 0) }}">What happened to the call</a>
  </div>
  {% end %}
""",
        ),
    ),
    "tasks.html": (
        (
            '<p class="page-eyebrow">Task history</p>\n    </div>\n  </header>\n',
            """  <div class="alert alert-info" role="note" id="mcp-banner">
    A failed tool call is a successful task: its outcome is in the column Result, and
    <a class="alert-link" href="{{ reverse_url('mcp-calls') }}?outcome=not_ok">the MCP pages list those that failed</a>.
  </div>
""",
        ),
    ),
}
"""By template: texts after which something is added, and the additions."""


class PageTemplates(Loader):
    """Loads templates: those under `mcp/` are ours, all others Flower's.

    Args:
        flower_path: The directory of Flower's templates.

    Raises:
        ConfigError: Flower's templates differ from those of the supported versions.
    """

    def __init__(self, flower_path: Path) -> None:
        super().__init__(str(flower_path))
        for name in (*ADDITIONS, *(f"mcp/{each.name}" for each in sorted((_OURS / "mcp").glob("*.html")))):
            self.load(name)  # now, so that the first reader does not wait for it

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:  # noqa: ARG002
        """Names are complete paths: a template of ours extends Flower's `base.html`."""
        return name

    def _create_template(self, name: str) -> Template:
        is_ours = name.startswith("mcp/")
        text = ((_OURS if is_ours else Path(self.root)) / name).read_text(encoding="utf-8")
        if name in ADDITIONS:
            for place, addition in ADDITIONS[name]:
                if text.count(place) != 1:
                    raise ConfigError(
                        f"this version of Flower is not supported: its template {name} is different. "
                        "Install a supported version: pip install 'flower>=2.2,<2.3'"
                    )
                text = text.replace(place, place + addition)
        if is_ours:
            return Template(text, name=name, loader=self, autoescape=escape_visibly.__name__)
        return Template(text, name=name, loader=self)


def escape_visibly(text: bytes) -> str | bytes:
    """The escaping of every expression in our templates, except our own markup: no markup, no hidden characters."""
    if _HARMLESS.fullmatch(text):
        return text  # most of them, at a third of the cost
    return xhtml_escape(make_visible(to_unicode(text), keep="\n\t\r"))


@cache
def asset_version(name: str) -> str:
    """The digest of a static file: part of its address, so that browsers may cache it for ever."""
    return hashlib.sha256((STATIC_PATH / name).read_bytes()).hexdigest()[:12]
