"""Parsers of the verbs, and mistakes in their flags as messages."""

from __future__ import annotations

from argparse import Action, ArgumentError, RawDescriptionHelpFormatter
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from rankwise.config.flags import normalize
from rankwise.errors import UserError


class HelpFormatter(DefaultHelpFormatter, RawDescriptionHelpFormatter):
    """Keeps the lines of descriptions, and leaves out the flags that would read a section from another file."""

    def add_argument(self, action: Action) -> None:
        """Adds a flag, unless it stands for a whole section."""
        if action.metavar != "CONFIG" or "--config" in action.option_strings:
            super().add_argument(action)


def new_parser(verb: str, description: str) -> ArgumentParser:
    """A parser for the flags of a verb.

    Args:
        verb: Its name.
        description: What ``--help`` begins with.
    """
    return ArgumentParser(
        prog=f"rankwise {verb}",
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )


def parse(parser: ArgumentParser, words: list[str], short_flags: dict[str, str] | None = None) -> Any:
    """The values of the flags.

    Args:
        parser: Of the verb.
        words: What was typed after the verb.
        short_flags: Abbreviations and what they stand for, with verbs that take a loss and an assigner.

    Raises:
        UserError: A flag is not known or has an invalid value.
    """
    from rankwise.config.suggest import explain

    bases: dict[str, type] = {}
    if short_flags:
        from rankwise.assign.base import Assigner
        from rankwise.losses.base import Loss

        bases = {"loss": Loss, "assign": Assigner}
    flags, others = normalize(parser, words, short_flags)
    try:
        return parser.parse_args([*flags, *others])
    except (ArgumentError, TypeError, ValueError) as error:
        raise UserError(f"{explain(parser, error, bases, short_flags or {})} (--help lists all flags)") from error
