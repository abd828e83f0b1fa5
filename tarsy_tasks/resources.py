"""The resources of MCP servers, as agents see them.

Owns their shapes: what a server lists, its templates, and what reading one gives. It knows neither Celery nor MCP.
"""

import base64
from collections.abc import Mapping, Sequence
from operator import not_
from typing import Any, Self

from pydantic import Field

from tarsy_tasks.models import Attachment, FrozenModel, ToolResult

__all__ = [
    "BLOB",
    "TEXT",
    "ResourceChange",
    "ResourceContents",
    "ResourceDefinition",
    "ResourceResult",
    "ResourceTemplate",
    "Values",
    "WatchMessage",
]

TEXT, BLOB = "text", "blob"
"""The kinds of contents, in `ToolResult.content_types` of a read."""
Values = Mapping[str, str | Sequence[str]]
"""What takes the places of a template's variables."""


class _Listed(FrozenModel):
    """What resources and their templates have in common.

    Attributes:
        server: Id of the MCP server.
        name: On its server.
        title: A name for people; empty without one.
        description: For models, as the server gives it, masked.
        mime_type: None if it is not known.
        annotations: MCP hints in their wire spelling: `audience`, `priority`, `lastModified`. Claims of the server.
        icons: For people, in their wire spelling; left out if they are long.
        meta: `_meta` as the server gives it; left out if it is long.
    """

    server: str
    name: str = ""
    title: str = Field(default="", exclude_if=not_)
    description: str = Field(default="", exclude_if=not_)
    mime_type: str | None = Field(default=None, exclude_if=not_)
    annotations: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    icons: tuple[dict[str, Any], ...] = Field(default=(), exclude_if=not_)
    meta: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)


class ResourceDefinition(_Listed):
    """A resource that a server lists.

    It has a `server`, `name`, `title`, `description`, `mime_type`, `annotations`, `icons` and `meta`, too: masked, as
    the server gives them.

    Attributes:
        uri: By which it is read. If it contains a secret, that is masked, and the resource cannot be read.
        size_bytes: As the server says; None if it does not.
    """

    uri: str
    size_bytes: int | None = Field(default=None, exclude_if=lambda size: size is None)


class ResourceTemplate(_Listed):
    """A family of resources. Its other attributes are those of a `ResourceDefinition`.

    Attributes:
        uri_template: RFC 6570; `read_resource(template, values={…})` reads one of them.
    """

    uri_template: str


class ResourceContents(FrozenModel):
    """What one resource holds, or a part of it.

    Attributes:
        size_bytes: Of the content, even if the content itself was left out.
        text: None for a blob.
        data: Base64 of a blob; None for a text, and for a blob that is too large or contains a secret.
    """

    uri: str
    mime_type: str | None = None
    size_bytes: int | None = None
    text: str | None = None
    data: str | None = None

    def read_bytes(self) -> bytes:
        """The content.

        Raises:
            ValueError: It was left out.
        """
        if self.text is not None:
            return self.text.encode()
        if self.data is None:
            raise ValueError(f"the content of {self.uri} was left out")
        return base64.b64decode(self.data)


class ResourceResult(ToolResult):
    """The answer to one read; there is exactly one, whatever happened.

    It is a `ToolResult`: `content` is what a model reads, `attachments` has what is known of each part.
    """

    @classmethod
    def of(cls, answer: ToolResult) -> Self:
        """The answer to a read."""
        return cls.model_construct(answer.model_fields_set, **vars(answer))

    @property
    def contents(self) -> tuple[ResourceContents, ...]:
        """What was read; most resources have one part. Empty for an error."""
        has_text = self.content_types == (TEXT,) and len(self.attachments) == 1
        return tuple(_contents_of(each, self.content if has_text else each.text) for each in self.attachments)


def _contents_of(part: Attachment, text: str | None) -> ResourceContents:
    size_bytes, data = part.size_bytes, part.data
    return ResourceContents(uri=part.uri or "", mime_type=part.mime_type, size_bytes=size_bytes, text=text, data=data)


class ResourceChange(FrozenModel):
    """A watched resource has changed, or may have.

    Attributes:
        server: Id of its server.
        uri: What changed, masked: the resource, or a part of it.
        is_certain: The server has reported it. False: it may have changed, because nobody heard for a while what the
            server reports, or because more was reported than the agent has read.
    """

    server: str
    uri: str
    is_certain: bool = True


class WatchMessage(FrozenModel):
    """What a worker publishes of one watch (docs/protocol.md).

    Attributes:
        watch: Its id, that of the task that began it.
        changed: URIs that the server has reported, masked.
        is_uncertain: More may have changed.
        ended: Why the watch has ended, masked; empty if it has not. A request to watch again is answered in full.
    """

    watch: str
    changed: tuple[str, ...] = ()
    is_uncertain: bool = False
    ended: str = ""

    def dump(self) -> bytes:
        """As JSON, which begins with `{"watch":`."""
        return self.model_dump_json(exclude_defaults=True).encode()
