"""Argument parsers of the subcommands, with helpful messages for wrong flags."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentError, RawDescriptionHelpFormatter
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from rankwise.config.flags import normalize
from rankwise.config.suggest import explain
from rankwise.errors import UserError


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Help without Python types and empty defaults, and without the flags that would read a section from a file."""

    def add_argument(self, action: Action) -> None:
        """Adds a flag, unless it is a whole section."""
        if action.metavar != "CONFIG" or "--config" in action.option_strings:
            super().add_argument(action)

    def _get_help_string(self, action: Action) -> str:
        text, default = (action.help or "").replace("``", ""), action.default
        if default in (None, SUPPRESS, "", (), [], {}) or "(default" in text:
            return text
        if isinstance(default, bool | tuple):  # as they are written on the command line
            default = str(default).lower() if isinstance(default, bool) else list(default)
        return f"{text} (default: {default})"


def new_parser(verb: str, description: str) -> ArgumentParser:
    """A parser for the flags of a subcommand."""
    return ArgumentParser(
        prog=f"rankwise {verb}",
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )


def parse(parser: ArgumentParser, words: list[str], short_flags: dict[str, str] | None = None) -> Any:
    """Parses the command line after the subcommand.

    ``short_flags`` are short flags and their long forms, for subcommands with a loss and an assigner. A flag that does
    not exist or has an invalid value is a UserError.
    """
    bases: dict[str, type] = {}
    if short_flags:
        from rankwise.assign.base import Assigner
        from rankwise.losses.base import Loss

        bases = {"loss": Loss, "assign": Assigner}
    flags, others = normalize(parser, words, short_flags)
    try:
        return parser.parse_args([*flags, *others])
    except (ArgumentError, TypeError, ValueError) as error:
        raise UserError(f"{explain(parser, error, bases, short_flags or {})}") from error
