from typing import Any

import click

Flower: Any
flower: click.Command
