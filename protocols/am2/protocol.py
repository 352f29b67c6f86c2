"""AM-II, as the entry point "am2" of the group "testbed.protocols" gives it."""

from __future__ import annotations

from typing import Final, NoReturn

from protocols.am2.codec import ETHERTYPE
from protocols.am2.plug import plug
from protocols.am2.settings import Settings
from protocols.core.protocol import Configurable, Protocol


def _no_device(host: object) -> NoReturn:
    raise NotImplementedError("MPI has no device for AM-II")


PROTOCOL: Final = Protocol(plug(), ETHERTYPE, _no_device, routed=True, configurable=Configurable(Settings, plug))
