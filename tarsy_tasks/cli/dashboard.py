"""`tarsy-tasks flower`: Flower with the MCP pages."""

import click
from celery.bin.base import CLIContext

import tarsy_tasks
from tarsy_tasks.celery_app import TarsyApp
from tarsy_tasks.errors import ConfigError

__all__ = ["flower"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("options", metavar="[FLOWER OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def flower(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Run Flower with the MCP pages at /mcp.

    It takes Flower's options (--port=5555, --basic-auth=user:password, --url-prefix=flower, --read-only …), FLOWER_
    variables and flowerconfig.py. Without authentication, everyone who can reach the port sees all pages.
    """
    from flower.command import flower as start

    from tarsy_tasks.dashboard import installation

    # `celery -A …` has already made one.
    context = ctx.obj if isinstance(ctx.obj, CLIContext) else None
    app = context.app if context is not None else tarsy_tasks.app
    if not isinstance(app, TarsyApp):
        raise ConfigError("the MCP pages need the tarsy_tasks application: run celery -A tarsy_tasks mcp flower")
    installation.install(app)
    ctx.obj = context or CLIContext(app=app, no_color=False, workdir=None)
    ctx.invoke(start, tornado_argv=options)
