"""Target: a figure that the product must reach, with its measured value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Target with its measured value, None where it was not measured."""

    name: str
    limit: float
    unit: str
    found: float | None
    strict: bool = False  # below the limit, not at it
    least: bool = False  # the limit is what must be reached, not what must not be passed

    @property
    def reached(self) -> bool | None:
        if self.found is None:
            return None
        if self.least:
            return self.found >= self.limit
        return self.found < self.limit if self.strict else self.found <= self.limit
