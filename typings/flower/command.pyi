import click

flower: click.Command
