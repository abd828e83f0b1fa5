"""The error for a framework that is not installed, or too old."""

from importlib import metadata

__all__ = ["missing_framework"]


def missing_framework(error: ImportError, extra: str, distribution: str) -> ImportError:
    """What to raise when an adapter cannot import its framework.

    Args:
        error: What the import raised.
        extra: Of tarsy-tasks, that installs the framework.
        distribution: The framework's name for pip.
    """
    try:
        found = f"{distribution} {metadata.version(distribution)} is installed, which does not work ({error})"
    except metadata.PackageNotFoundError:
        found = f"{distribution} is not installed"
    return ImportError(f"{found}: run `pip install 'tarsy-tasks[{extra}]'`", name=error.name)
