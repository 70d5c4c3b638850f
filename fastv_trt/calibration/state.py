"""What a sweep has measured so far, on disk, so that it can be taken up again."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

from fastv_trt.calibration.budget import Outcome
from fastv_trt.errors import InputError

FILE = "state.json"


@dataclass
class Measured:
    """The outcomes of one cut.

    Attributes:
        masses: (ranking, target share, mass); None until they were found.
        outcomes: by the point's name, in the order of the samples, from the first on.
        cut: points that were given up, by name.
    """

    masses: list[tuple[str, float, float]] | None = None
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)


@dataclass
class State:
    """All cuts of a sweep.

    Attributes:
        sweep: what was asked for; a state of another sweep is refused.
    """

    path: Path
    sweep: dict[str, Any]
    cuts: dict[int, Measured] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, sweep: dict[str, Any]) -> State:
        """Read the state in `folder`, or start one.

        Raises:
            InputError: what is there is not a state, or belongs to another sweep.
        """
        path = folder / FILE
        if not path.exists():
            return cls(path, sweep)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            cuts = {
                int(k): Measured(
                    None if part["masses"] is None else [(str(n), float(t), float(m)) for n, t, m in part["masses"]],
                    {name: [Outcome(*values) for values in rows] for name, rows in part["outcomes"].items()},
                    set(part["cut"]),
                )
                for k, part in content["cuts"].items()
            }
            found = content["sweep"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"expected the state of a calibration in {path}, found: {error}; remove it") from error
        wanted = json.loads(json.dumps(sweep))
        different = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
        if different:
            raise InputError(
                f"expected {path} to be of this calibration, found another {', '.join(different)}; remove it or name "
                "another --out"
            )
        return cls(path, sweep, cuts)

    def save(self) -> None:
        """Write all of it beside its final place and rename, so that a half-written state never looks whole."""
        content = {
            "sweep": self.sweep,
            "cuts": {
                str(k): {
                    "masses": part.masses,
                    "outcomes": {name: [list(astuple(o)) for o in rows] for name, rows in part.outcomes.items()},
                    "cut": sorted(part.cut),
                }
                for k, part in self.cuts.items()
            },
        }
        temporary = self.path.with_name(f".{self.path.name}.partial")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(self.path)


def described(**values: Any) -> dict[str, Any]:
    """What identifies a sweep, as JSON values; dataclasses are opened."""
    return {
        key: asdict(value) if hasattr(value, "__dataclass_fields__") and not isinstance(value, type) else value
        for key, value in values.items()
    }
