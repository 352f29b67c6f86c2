"""Command `decode` on complete and growing captures of simulated runs, and on files that are not captures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import testbed
from protocols.emp.codec import TYPE_ACK, type_of
from protocols.emp.descriptors import ANY_SOURCE
from protocols.emp.host import ANY_TAG, Endpoint, plug
from testbed.cli.documents import schema_of
from testbed.errors import reason_of
from testbed.kernel.children import in_child
from testbed.observe.decoding.capture_files import CaptureSource
from testbed.sim.recorder import CAPTURE
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.model import Description
from tests.sim.scapy_captures import read_capture

SIZE, COUNT = 4_000, 12
MESSAGE_ID = slice(26, 30)
"""Position of the message's number in a frame."""


async def send(endpoint: Endpoint, node: SimNode) -> None:  # noqa: ARG001
    for _ in range(COUNT):
        await endpoint.post_send(1, 5, bytes(SIZE))


async def receive(endpoint: Endpoint, node: SimNode) -> None:  # noqa: ARG001
    for _ in range(COUNT):
        await endpoint.post_receive(ANY_SOURCE, ANY_TAG, bytearray(SIZE))


def record(folder: Path, seed: int = 3) -> Path:
    """Record a run of EMP under loss; return the path of its capture."""
    with Simulation(Description.star(2, delay="5us", loss="10%", seed=seed), plug(), folder=folder) as simulation:
        simulation.spawn("n1", send)
        simulation.spawn("n2", receive)
        simulation.run(timeout=10_000_000_000)
    return folder / CAPTURE


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("run"))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from testbed.cli.main import main; main()", "decode", *map(str, arguments)]


def decode(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    completed = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == code, completed.stderr
    assert "Traceback" not in completed.stderr
    return completed


def documents(text: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in text.splitlines()]
    for document in records:
        jsonschema.validate(document, schema_of(document["kind"]))
    return records


def test_every_captured_frame_is_a_line_with_its_fate(recorded: Path) -> None:
    captured = read_capture(recorded)
    completed = decode(recorded.parent)
    lines = completed.stdout.splitlines()
    lost_count = sum(bool(comment) for *_, comment in captured)
    assert completed.stderr == f"{len(captured)} frames, {lost_count} of them with a fate\n"
    assert lost_count > 5
    for line, (end, time, frame, comment) in zip(lines, captured, strict=True):
        seconds, nanoseconds = divmod(time, 1_000_000_000)
        assert line.startswith(f"{seconds}.{nanoseconds:09} {end} ")
        assert f", {len(frame)} bytes" in line
        assert line.endswith(f"  [{comment}]") if comment else "[" not in line
        assert "n1:eth0 > n2:eth0 EMP" in line or "n2:eth0 > n1:eth0 EMP ACK" in line


def test_a_filter_selects_frames_by_a_rules_condition(recorded: Path) -> None:
    acknowledgements = [
        frame
        for interface, _, frame, _ in read_capture(recorded)
        if interface == "n2:eth0" and type_of(frame) == TYPE_ACK
    ]
    condition = 'emp.type == 3 and link == "n2:eth0--s1:2" and direction == forward'
    completed = decode(recorded, "--filter", condition)
    assert len(completed.stdout.splitlines()) == len(acknowledgements)
    assert completed.stderr.startswith(f"{len(acknowledgements)} of {len(read_capture(recorded))} frames")


def test_json_output_has_the_fields_under_the_names_of_filters(recorded: Path) -> None:
    completed = decode(recorded, "--json")
    assert completed.stderr == ""
    decoded = documents(completed.stdout)
    captured = read_capture(recorded)
    assert [(document["interface"], document["time"], document["bytes"], document["fate"]) for document in decoded] == [
        (end, time, len(frame), comment) for end, time, frame, comment in captured
    ]
    assert {document["kind"] for document in decoded} == {"decoded"}
    first = decoded[0]
    assert (first["protocol"], first["link"], first["direction"], first["way"]) == (
        "emp",
        "n1:eth0--s1:1",
        "forward",
        "out",
    )
    assert {name: first["fields"][name] for name in ("emp.type", "emp.total", "emp.tag", "frame.len", "eth.src")} == {
        "emp.type": 1,
        "emp.total": SIZE,
        "emp.tag": 5,
        "frame.len": len(captured[0][2]),
        "eth.src": captured[0][2][6:12].hex(":"),
    }


def test_verbose_output_shows_all_fields_of_all_layers(recorded: Path) -> None:
    frame, *layers = decode(recorded, "-v", "--filter", "emp.type == 1 and before(1us)").stdout.splitlines()
    assert "EMP MESSAGE" in frame
    assert [line.strip().partition(":")[0] for line in layers] == ["Ethernet", "EMP", "EMP message", "Raw"]
    assert "type MESSAGE, flags , unit 3" in layers[1].replace("''", "")
    assert "source 0, destination 1, tag 0x5, total 4000" in layers[2]


def test_the_lost_frames_of_each_message_match_the_capture(recorded: Path) -> None:
    captured = read_capture(recorded)
    decoded = documents(decode(recorded, "--messages", "--json").stdout)
    assert [document["message"] for document in decoded] == [f"n1/n2/{number}" for number in range(COUNT)]
    assert {document["bytes"] for document in decoded} == {SIZE}
    lost_by_id = Counter(int.from_bytes(frame[26:30], "big") for *_, frame, comment in captured if comment)
    assert [document["lost"] for document in decoded] == [lost_by_id[number] for number in range(COUNT)]
    sender_frames = [frame for end, _, frame, _ in captured if end == "n1:eth0" and frame[6:12] == captured[0][2][6:12]]
    assert sum(document["sent"]["data"] for document in decoded) == len(sender_frames)
    sent_counts = Counter(sender_frames)
    assert sum(document["again"] for document in decoded if document["sent"].get("ack") == 1) <= sum(
        sent_counts.values()
    ) - len(sent_counts)
    lines = decode(recorded, "--messages").stdout.splitlines()
    assert len(lines) == COUNT
    assert all(f"  n1/n2/{number}" in line and "EMP, 4,000 bytes" in line for number, line in enumerate(lines))


def test_option_message_lists_the_frames_of_one_message(recorded: Path) -> None:
    messages = documents(decode(recorded, "--messages", "--json").stdout)
    lossy = next(message for message in messages if message["lost"])
    (document,) = documents(decode(recorded, "--message", lossy["message"], "--json").stdout)
    assert {key: value for key, value in document.items() if key != "frames"} == lossy
    number = int(lossy["message"].rpartition("/")[2])
    recorded_frames = [
        (interface, time, comment)
        for interface, time, frame, comment in read_capture(recorded)
        if int.from_bytes(frame[MESSAGE_ID], "big") == number
    ]
    assert [(frame["interface"], frame["time"], frame["fate"]) for frame in document["frames"]] == recorded_frames
    head, *lines = decode(recorded, "--message", f"n1/{number}").stdout.splitlines()
    assert f" {lossy['message']} " in head
    assert len(lines) == len(recorded_frames)
    assert sum("  lost" in line for line in lines) == lossy["lost"]


def test_captures_of_repetitions_are_merged_by_time(tmp_path: Path) -> None:
    for number in (1, 2):
        record(tmp_path / f"repeat-{number}", seed=number)
    decoded = documents(decode(tmp_path, "--json").stdout)
    assert {document["capture"] for document in decoded} == {"repeat-1", "repeat-2"}
    assert [document["time"] for document in decoded] == sorted(document["time"] for document in decoded)
    assert len(decode(tmp_path, "--messages").stdout.splitlines()) == 2 * COUNT
    output = decode(tmp_path, "--message", "n1/0").stdout
    assert output.count("repeat-1 n1/n2/0") == output.count("repeat-2 n1/n2/0") == 1
    assert "has 2 captures: --follow needs a single file" in decode(tmp_path, "--follow", code=1).stderr


def test_a_capture_is_read_from_standard_input(recorded: Path) -> None:
    with recorded.open("rb") as file:
        completed = subprocess.run(command("-"), stdin=file, capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout == decode(recorded).stdout


def test_follow_prints_the_complete_frames_of_a_growing_file_until_an_interrupt(recorded: Path, tmp_path: Path) -> None:
    content, expected = recorded.read_bytes(), decode(recorded).stdout.splitlines(keepends=True)
    path = tmp_path / "grows.pcapng"
    path.touch()
    with subprocess.Popen(command(path, "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        log: list[str] = []
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(content), 3_001):
                file.write(content[start : start + 3_001])
                so_far = tmp_path / "so_far.pcapng"
                so_far.write_bytes(content[: start + 3_001])
                while len(log) < count_frames(so_far):
                    log.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        remaining_output, errors = process.communicate(timeout=60)
    assert [*log, *remaining_output.splitlines(keepends=True)] == expected
    assert process.returncode == 0
    assert errors.startswith(f"{len(expected)} frames")


def count_frames(path: Path) -> int:
    """Count the complete frames of a pcapng file by its block lengths."""
    data, offset, count = path.read_bytes(), 0, 0
    while offset + 12 <= len(data) and offset + (
        size := int.from_bytes(data[offset + 4 : offset + 8], "little")
    ) <= len(data):
        count += data[offset] == 6
        offset += size
    return count


def test_a_file_replaced_while_it_is_followed_is_reported(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "grows.pcapng"
    path.write_bytes(recorded.read_bytes())
    with subprocess.Popen(command(path, "-f"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        path.write_bytes(b"")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "has become shorter while it was read" in errors


def test_the_complete_frames_of_a_truncated_capture_are_shown_with_an_error(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pcapng"
    path.write_bytes(recorded.read_bytes()[:-5])
    completed = decode(path, code=1)
    assert completed.stdout == "".join(decode(recorded).stdout.splitlines(keepends=True)[:-1])
    assert "cut.pcapng is cut off within the block that begins at byte" in completed.stderr
    assert "; all frames before it are shown" in completed.stderr
    by_message = decode(path, "--messages", code=1)
    assert len(by_message.stdout.splitlines()) == COUNT
    assert "is cut off within" in by_message.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["nowhere.pcapng"], "there is no file nowhere.pcapng", 4),
        (["folder"], "folder has no captures", 4),
        (["text"], "text is not a capture: it begins with 'hell'", 1),
        (["empty"], "empty is empty: a capture has at least a header", 1),
        (["it.pcapng", "--filter", "emp.tpye == 1"], "filter, column 1: no field is called 'emp.tpye'", 2),
        (["it.pcapng", "--filter", "nth(2)"], "nth() counts frames on a link", 2),
        (["it.pcapng", "--message", "n1/n2/77"], "no message 'n1/n2/77' in it.pcapng — did you mean 'n1/n2/7'?", 4),
        (["text", "--message", "n1/n2/77"], "text is not a capture", 1),
        (["it.pcapng", "--messages", "--follow"], "--messages and --message cannot be combined with --follow", 2),
    ],
)
def test_an_invalid_file_or_option_is_an_error_with_its_exit_code(
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("text").write_text("hello")
    Path("empty").touch()
    Path("it.pcapng").write_bytes(recorded.read_bytes())
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), *sys.path]))
    completed = decode(*arguments, code=code)
    assert message in completed.stderr
    assert completed.stdout == ""


def test_a_file_without_read_permission_is_reported_with_its_name(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret.pcapng"
    path.write_bytes(recorded.read_bytes())
    path.chmod(0)

    def read_unprivileged() -> str:
        if os.geteuid() == 0:  # root may read everything
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            next(CaptureSource(str(path)).batches())
        except OSError as error:  # the command prints it and exits with 1
            return reason_of(error)
        return "no error"

    assert in_child(read_unprivileged) == f"Permission denied: {path}"


@pytest.mark.parametrize("options", [[], ["--json"], ["--messages"], ["--filter", "emp"]])
def test_decode_does_not_import_scapy_unless_output_is_verbose(recorded: Path, options: list[str]) -> None:
    lines = [
        "import sys",
        "from click.testing import CliRunner",
        "from testbed.cli.main import testbed",
        "done = CliRunner().invoke(testbed, sys.argv[1:])",
        "sys.exit(done.exit_code or 'scapy' in sys.modules)",
    ]
    arguments = [sys.executable, "-c", "\n".join(lines), "decode", str(recorded), *options]
    assert subprocess.run(arguments, check=False, timeout=60).returncode == 0


def test_an_external_protocol_is_decoded_like_a_builtin_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol is the package in tests/sim/outside."""
    package_path = Path(__file__).with_name("outside")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package_path), *sys.path]))
    folder = tmp_path / "run"
    run = [
        *command()[:-1],
        "run",
        "star-2",
        "postcard-greeting",
        "--protocol",
        "postcard",
        "--mode",
        "sim",
        "--capture",
    ]
    subprocess.run([*run, "--output", str(folder)], capture_output=True, check=True, timeout=60)
    captured = read_capture(folder / CAPTURE)
    lines = decode(folder).stdout.splitlines()
    assert len(lines) == len(captured) >= 4
    assert "n1:eth0 > n2:eth0 POSTCARD CARD LAST 0, tag 0, 64 bytes" in lines[0]
    cards = [
        document for document in documents(decode(folder, "--json").stdout) if document["fields"]["postcard.kind"] == 1
    ]
    assert len(decode(folder, "--filter", "postcard.kind == 1").stdout.splitlines()) == len(cards)
    assert "Postcard: kind CARD, flags LAST, context 0, sender 1, receiver 1, number 0" in decode(folder, "-v").stdout
    messages = documents(decode(folder, "--messages", "--json").stdout)
    assert {(message["protocol"], message["sent"]["data"], message["sent"]["ack"]) for message in messages} == {
        ("postcard", 1, 1)
    }
    assert messages[0]["message"] == "n1/n2/0"
    completed = subprocess.run([*command()[:-1], "dissector"], capture_output=True, text=True, check=True, timeout=60)
    assert 'protocol("postcard", "POSTCARD")' in completed.stdout
    assert "0x88b7, proto" in completed.stdout


def test_a_protocol_without_message_numbers_gives_a_warning_instead_of_messages(tmp_path: Path) -> None:
    """SSAM's cells number requests modulo 64."""
    network = {"kind": "atm", "rate": "140mbit", "overhead": 2}
    testbed.run(
        Description.star(2, **network), "pingpong", protocol="ssam", mode="sim", output=tmp_path / "run", capture=True,
        settings={"sizes": (4,), "count": 3},
    )  # fmt: skip
    done = decode(tmp_path / "run", "--messages")
    assert done.stdout == ""
    assert re.fullmatch(r"warning: none of the \d+ frames has a message number\n", done.stderr)
