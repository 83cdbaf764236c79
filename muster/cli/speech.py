"""How commands speak: click's classes, with help pages and complaints in the person's language.

A command's docstring is its help and stands in the catalogue paragraph by paragraph, so `@command()` and `@group()` of
this module make every command. In English click speaks for itself, and nothing more is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from muster.words import ENGLISH, docstring, language


class Context(click.Context):
    """A context whose help pages are laid out for the person's language."""

    def make_formatter(self) -> click.HelpFormatter:
        """What a help page is written with."""
        if language() == ENGLISH:
            return super().make_formatter()
        from muster.cli.clicks import Formatter

        return Formatter(width=self.terminal_width, max_width=self.max_content_width)


class Command(click.Command):
    """A command whose docstring is told in the person's language."""

    context_class = Context

    def __init__(self, name: str | None, **attrs: Any) -> None:
        if attrs.get("help") and language() != ENGLISH:
            attrs["help"] = docstring(attrs["help"])
        super().__init__(name, **attrs)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Its first sentence, for lists."""
        if language() == ENGLISH or not self.help:
            return super().get_short_help_str(limit)
        return self.help.partition("\n")[0].partition("。")[0]


class Group(Command, click.Group):
    """A command with subcommands."""

    command_class = Command
    group_class = type


def command(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""
    return click.command(name, cls=Command, **attrs)


def group(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a group of commands."""
    return click.group(name, cls=Group, **attrs)


def complaint(error: click.UsageError) -> str:
    """What is wrong with the words that were typed, in the person's language."""
    said = error.format_message()
    if language() == ENGLISH:
        return said
    from muster.cli.clicks import translated

    return translated(said)
