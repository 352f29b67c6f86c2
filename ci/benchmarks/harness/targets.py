"""Target: a limit for a measured value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A limit and the measured value. measured: None if the value was not measured."""

    name: str
    limit: float
    unit: str
    measured: float | None
    strict: bool = False  # the value must be below the limit, not equal to it
    is_minimum: bool = False  # the limit is a lower bound

    @property
    def reached(self) -> bool | None:
        """Whether the value is within the limit; None if it was not measured."""
        if self.measured is None:
            return None
        if self.is_minimum:
            return self.measured >= self.limit
        return self.measured < self.limit if self.strict else self.measured <= self.limit
