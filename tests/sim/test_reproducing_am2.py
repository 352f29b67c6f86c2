"""AM-II's paper compared with the simulation: the rows of two workstations on one switch. The other rows take minutes;
`test_active_message_workloads` runs their workloads on small networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import testbed
from protocols.am2.host.library import ActiveMessages
from protocols.am2.host.segment_driver import Residence
from protocols.am2.page import SIZE
from protocols.am2.profile import NOW_1998
from protocols.am2.transport import FRAME_OVERHEAD
from protocols.core.profile import Profile
from testbed.cli.documents import schema_of
from testbed.cli.main import testbed as command
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.engine.server import transfer_time
from testbed.errors import NotFoundError
from testbed.fabric.myrinet.settings import DEFAULT
from testbed.observe.comparing.scores import MAX_CALIBRATION_ERROR
from testbed.observe.paper_files import paper_of
from testbed.spec.model import Description
from testbed.workloads.form import Native, Node
from tests.sim.documented_rows import rows_that_differ

PAIR = ("logp", "unacknowledged", "unguarded", "gam", "bulk", "consistent", "gam-bulk")


@pytest.fixture(scope="module")
def am2() -> Reproduction:
    return reproduce("am2", runs=PAIR)


def test_the_documentation_lists_these_rows(am2: Reproduction) -> None:
    assert rows_that_differ(am2) == []


def test_the_two_calibrated_rows_are_reproduced_with_one_constant(am2: Reproduction) -> None:
    assert {row.row.name: row.row.paper for row in am2.rows} == {"round trip, 4 words": 42, "bandwidth, 8 KB": 31}
    assert all(row.calibrated and abs(row.error) <= MAX_CALIBRATION_ERROR for row in am2.rows)
    assert am2.paper.constants == 1
    assert am2.overall is None


def test_the_papers_qualitative_statements_hold(am2: Reproduction) -> None:
    assert am2.failures == []
    assert len(am2.shapes) == 9


@pytest.mark.parametrize("key", ["receive", "ring", "show", "notice", "bus_transaction"])
def test_a_profile_with_a_doubled_cost_does_not_reproduce_the_paper(key: str) -> None:
    doubled = replace(NOW_1998, name="doubled", **{key: 2 * getattr(NOW_1998, key)})
    assert reproduce("am2", profile=doubled, runs=["logp", "bulk"]).failures


def test_a_round_trip_between_idle_nics_takes_the_sum_of_its_components(am2: Reproduction) -> None:
    def one_way(profile: Profile) -> int:
        entry = 48 + 4 * 4  # bytes of the entry that the host writes
        host = profile.post + transfer_time(entry, profile.write_rate) + profile.notice
        nics = profile.ring + profile.send + profile.receive + profile.show
        overhead = FRAME_OVERHEAD + 4 * 4 + 1  # arguments, and the route's one byte, on the first cable
        return host + nics + transfer_time(overhead, DEFAULT.rate) + DEFAULT.hop

    assert am2.rows[0].ours * 1000 == pytest.approx(2 * one_way(NOW_1998), rel=0.01)


class LoadEndpoint(Native[ActiveMessages]):
    """Measure how long an idle node takes to load an endpoint into its NIC."""

    protocol = "am2"

    async def program(self, library: ActiveMessages, node: Node) -> int:
        endpoint = library.allocate_bundle().allocate_endpoint()
        await node.sleep(1_000_000)
        start_time = node.now()
        library.driver.fault(endpoint)
        while library.driver.state(endpoint) is not Residence.RESIDENT:
            await node.sleep(10)
        return node.now() - start_time


def test_loading_an_endpoint_takes_the_time_of_the_hosts_writes_and_an_interrupt() -> None:
    result = testbed.run(Description.star(2), LoadEndpoint, protocol="am2", mode="sim", profile="now-1998")
    write_time = transfer_time(SIZE + 4, NOW_1998.write_rate)
    firmware = NOW_1998.ring + NOW_1998.show
    assert result.results["n1"] == pytest.approx(NOW_1998.post + write_time + firmware + NOW_1998.interrupt, abs=20)


def test_a_repeated_reproduction_is_identical(am2: Reproduction) -> None:
    repeated = reproduce("am2", runs=["logp", "bulk"])
    assert [row.ours for row in repeated.rows] == [row.ours for row in am2.rows]
    first = {table.name: rows for table, rows in am2.tables}
    assert all(first[table.name] == rows for table, rows in repeated.tables)


def test_every_row_relation_and_table_names_its_source() -> None:
    paper = paper_of("am2")
    assert all(row.source and row.meaning for row in paper.rows)
    assert all(relation.source for relation in paper.relations)
    assert all(table.source for table in paper.tables)
    assert all(relation.least or relation.most for relation in paper.relations)
    assert {table.run for table in paper.tables} == set(paper.runs)


def test_the_command_prints_tables_and_relations_and_a_document_of_its_schema(tmp_path: Path) -> None:
    folder = str(tmp_path / "points")
    arguments = ["reproduce", "am2", "--run", "logp", "--run", "unacknowledged", "--jobs", "1", "--output", folder]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "with 1 calibrated constant\n" in result.output
    assert "LogP, all of AM-II" in result.output
    assert "holds: acknowledgements take a part of the gap" in result.output
    assert "errors of the predicted rows" not in result.output
    document = json.loads(CliRunner().invoke(command, ["reproduce", "--continue", folder, "--json"]).stdout)
    jsonschema.validate(document, dict(schema_of("reproduce")))
    names = ["LogP, all of AM-II", "LogP, without acknowledgements and retransmission"]
    assert [table["name"] for table in document["systems"][0]["tables"]] == names


def test_an_unknown_run_of_a_paper_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(NotFoundError, match=r"no run 'logs' — did you mean 'logp'"):
        reproduce("am2", runs=["logs"])
