"""The command `outlast`."""

from outlast.cli.app import main

__all__ = ["main"]
