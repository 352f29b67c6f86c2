"""Stars brought up and taken down by each contender in turn, A B A B. The namespaces of a star are destroyed before the
next star is brought up."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from benchmarks.harness.contenders import Contender, ContenderError
from benchmarks.harness.namespace_teardown import NotSettledError, Observer
from benchmarks.harness.rows import Row

BRING_UP, TEAR_DOWN, SETTLED = "bring-up", "tear-down", "settled tear-down"


class FailedError(Exception):
    """A contender could not bring its star up or down."""

    def __init__(self, contender: Contender, cause: Exception) -> None:
        super().__init__(str(cause))
        self.contender = contender


def cluster_name(contender: Contender) -> str:
    """Return a cluster name that is unique on the machine."""
    return f"bench-{''.join(filter(str.isalnum, contender.name))}-{os.getpid()}"


def measure(
    contenders: Iterable[Contender],
    hosts: int,
    repeat: int,
    observer: Observer,
    progress: Callable[[str], None],
) -> list[Row]:
    """Measure `repeat` rounds of every contender after a warm-up; rows in seconds."""
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    contenders = list(contenders)
    for turn in range(repeat + 1):
        for contender in contenders:
            progress(f"star of {hosts}: {contender.name}, {f'{turn} of {repeat}' if turn else 'warm-up'}")
            try:
                result = _once(contender, hosts, observer)
            except (ContenderError, NotSettledError) as error:
                raise FailedError(contender, error) from error
            for measured, seconds in result:
                if turn:
                    samples[contender.name, measured].append(seconds)
    settings = {contender.name: contender.settings for contender in contenders}
    common = {"repeat": repeat, "interleaved": [contender.name for contender in contenders]}
    return [
        Row("star", name, measured, hosts, "s", tuple(values), {**settings[name], **common})
        for (name, measured), values in samples.items()
    ]


def _once(contender: Contender, hosts: int, observer: Observer) -> Sequence[tuple[str, float]]:
    up = contender.up(cluster_name(contender), hosts)
    namespaces = contender.namespaces()
    if len(namespaces) != hosts + 1:
        raise ContenderError(
            f"{contender.name} made {len(namespaces)} namespaces for a star of {hosts}, not {hosts + 1}"
        )
    observer.watch(namespaces)
    down = contender.down()
    settled = observer.wait()
    return [
        (BRING_UP, up.seconds),
        *up.parts.items(),
        (TEAR_DOWN, down.seconds),
        (SETTLED, (settled - down.start) / 1e9),
    ]
