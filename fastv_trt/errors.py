"""The few errors that this package raises on purpose.

Every message is one line that says what was expected, what was found and what to do. The command line
prints it and exits with `exit_code`; library users catch `FastVError`.
"""

from __future__ import annotations


class FastVError(Exception):
    """Base of all deliberate errors. `exit_code` is what the command line exits with."""

    exit_code = 1


class InputError(FastVError):
    """The caller asked for something that cannot be: a bad value, file, checkpoint or prompt."""

    exit_code = 2


class BundleError(InputError):
    """A bundle on disk is missing, altered, foreign or of a newer schema."""


class UnsupportedModelError(InputError):
    """The checkpoint is of a family, or uses a feature, that cannot be exported correctly."""


class VerificationError(FastVError):
    """A bundle's numbers differ from the checkpoint's by more than the tolerance."""


class UnavailableError(FastVError):
    """This machine lacks what the command needs (a GPU, a library, a provider)."""

    exit_code = 3
