"""Lost sends are reported in namespaces as in the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller.runs.run_options import Nics
from tests.sim.test_lost_sends import BOTH_PROTOCOLS, check_lost_messages, check_unmatched_send

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine")]


@BOTH_PROTOCOLS
@pytest.mark.parametrize("nics", ["inline", "shared"])
def test_a_send_that_fails_after_its_completion_is_reported_by_request_history_and_checks(
    tmp_path: Path, protocol: str, nics: Nics
) -> None:
    check_lost_messages(tmp_path, protocol, "live", nics)


@pytest.mark.parametrize(
    ("protocol", "nics"),
    [(protocol, nics) for protocol in ("emp", "am2", "ssam", "via", "openmx") for nics in ("inline", "shared")
     if (protocol, nics) != ("ssam", "shared")],
)  # fmt: skip
def test_a_synchronous_send_fails_if_the_receiver_restarts(tmp_path: Path, protocol: str, nics: Nics) -> None:
    check_unmatched_send(tmp_path, protocol, "live", nics)
