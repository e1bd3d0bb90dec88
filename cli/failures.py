"""How a command ends: exit codes, and the errors that stand for them."""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4


class CommandError(Exception):
    """A command could not do what it was asked; the message is for the person who typed it."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class WrongUsageError(CommandError):
    """An argument, an option or a `PERDURE_` variable does not fit."""

    exit_code = ExitCode.WRONG_USAGE


class NotFoundError(CommandError):
    """There is nothing of that id."""

    exit_code = ExitCode.NOT_FOUND


class UnreachableError(CommandError):
    """A server does not answer, or none is known."""

    exit_code = ExitCode.UNREACHABLE
