"""How good one answer is: against the right one, or against the unpruned model."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastv_trt.errors import InputError

Metric = Callable[[str, tuple[str, ...]], float]
"""(text, right answers) -> quality in [0, 1]."""


def exact(text: str, answers: tuple[str, ...]) -> float:
    """1 if the text is one of the answers, white space around it and case aside."""
    return float(text.strip().casefold() in {answer.strip().casefold() for answer in answers})


def contains(text: str, answers: tuple[str, ...]) -> float:
    """1 if one of the answers stands somewhere in the text, case aside."""
    return float(any(answer.strip().casefold() in text.casefold() for answer in answers))


METRICS: dict[str, Metric] = {"exact": exact, "contains": contains}


def metric(name: str) -> Metric:
    """A metric by name: exact, contains, or the user's own function as `module:function` or `file.py:function`.

    The function takes the generated text and the tuple of right answers, and returns a number in [0, 1] or a bool.
    Naming it runs its module's code.

    Raises:
        InputError: there is no such function.
    """
    if name in METRICS:
        return METRICS[name]
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function:
        raise InputError(
            f"expected a metric of {', '.join(METRICS)}, module:function or file.py:function, found {name!r}"
        )
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            if spec is None or spec.loader is None or not Path(place).is_file():
                raise InputError(f"expected a Python file at {place}, found none")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except InputError:
        raise
    except Exception as error:  # whatever the user's module raises
        raise InputError(f"expected a module that can be imported at {place}, found: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f"expected a function {function!r} in {place}, found none")
    return _checked(found, name)


def _checked(function: Callable[[str, tuple[str, ...]], object], name: str) -> Metric:
    def judge(text: str, answers: tuple[str, ...]) -> float:
        try:
            value = function(text, answers)
        except Exception as error:  # the user's own code
            raise InputError(f"expected {name} to judge {text!r}, found: {type(error).__name__}: {error}") from error
        if not isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)) or not 0 <= float(value) <= 1:
            raise InputError(f"expected a number in [0, 1] or a bool from {name}, found {value!r}")
        return float(value)

    return judge


def kl_divergence(reference: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """KL(reference || other) of the distributions that two logit vectors [V] stand for, in nats."""
    a, b = _log_softmax(reference), _log_softmax(other)
    return max(0.0, float(math.fsum(np.exp(a) * (a - b))))


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
