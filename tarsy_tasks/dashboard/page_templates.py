"""Where the templates of the pages come from: ours, and Flower's with the MCP pages linked in.

Owns the places in Flower's templates where something is added as they are loaded; nothing of them is copied. A Flower
whose templates lack such a place is not known to work.
"""

import re
from pathlib import Path

from tornado.escape import to_unicode, xhtml_escape
from tornado.template import Loader, Template

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["ADDITIONS", "PageTemplates", "escape_visibly"]

_HARMLESS = re.compile(rb"[A-Za-z0-9_ .,:;/%+-]*")
_OURS = Path(__file__).parent / "templates"

ADDITIONS = {
    "navbar.html": (
        ">Broker</a>\n        </li>\n",
        """        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'mcp' %} active{% end %}" href="{{ reverse_url('mcp') }}"
            {% if active_tab == 'mcp' %}aria-current="page"{% end %}>MCP</a>
        </li>
""",
    ),
    "task.html": (
        '<div class="detail-actions">\n',
        """{% if getattr(task, 'is_mcp_call', False) %}
      <a class="btn btn-outline-primary"
        href="{{ reverse_url('mcp-call', task.uuid) }}?near={{ int(task.timestamp or 0) }}">MCP call</a>
      {% end %}
""",
    ),
}
"""By template: behind which text what is added."""


class PageTemplates(Loader):
    """Loads templates: those under `mcp/` are ours, all others Flower's.

    Args:
        flower_path: Where Flower has its own.

    Raises:
        ConfigError: They are not what is known to work.
    """

    def __init__(self, flower_path: Path) -> None:
        super().__init__(str(flower_path))
        for name in ADDITIONS:
            self.load(name)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:  # noqa: ARG002
        """Names are whole: a template of ours extends Flower's `base.html`."""
        return name

    def _create_template(self, name: str) -> Template:
        path = _OURS / name if name.startswith("mcp/") else Path(self.root) / name
        text = path.read_text(encoding="utf-8")
        if name in ADDITIONS:
            place, addition = ADDITIONS[name]
            if text.count(place) != 1:
                raise ConfigError(
                    f"this Flower is not known to work with the MCP pages: its template {name} is another one. "
                    "Install the version that tarsy-tasks asks for: pip install 'flower>=2.2,<2.3'"
                )
            text = text.replace(place, place + addition)
        if name.startswith("mcp/"):
            return Template(text, name=name, loader=self, autoescape=escape_visibly.__name__)
        return Template(text, name=name, loader=self)


def escape_visibly(text: bytes) -> str | bytes:
    """What every expression in a template of ours goes through, unless it is markup of ours: no markup of others, and
    no character that hides what they say.
    """
    if _HARMLESS.fullmatch(text):
        return text  # most of them, at a third of the cost
    return xhtml_escape(make_visible(to_unicode(text), keep="\n\t\r"))
