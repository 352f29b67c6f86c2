"""Notes of the verdict on unreceived messages, which need no history of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from protocols.mpi.comm import Comm
from protocols.mpi.mpi_errors import ERR_TRUNCATE, MPIError
from testbed import Cluster, TestbedError
from testbed.workloads.form import Node

PROTOCOLS = ["emp", "am2", "via", "ssam", "openmx"]
NOTE = "that no receive took"


def notes_of(program: object, protocol: str, output: Path, nodes: int = 2, **options: object) -> list[str]:
    """Run a program in the simulation; return the verdict's notes on messages."""
    result = testbed.run(Cluster.star(nodes), program, protocol=protocol, mode="sim", output=output, **options)  # type: ignore[arg-type]
    return [note for note in result.verdict.notes if NOTE in note or "were not received" in note]


async def receive_one_of_three(comm: Comm, node: Node) -> None:
    """Rank 0 sends three messages to rank 1, which receives one."""
    if comm.rank == 0:
        await comm.Isend(b"wanted", 1, 1)
        await comm.Isend(b"unwanted", 1, 2)
        await comm.isend("unwanted, too", 1, 3)
    elif comm.rank == 1:
        await comm.Recv(bytearray(6), 0, 1)
    await node.sleep(10_000_000)


async def receive_by_every_call(comm: Comm, node: Node) -> None:  # noqa: ARG001
    """Rank 0 sends by every kind of call, and rank 1 receives by every kind of call; both send to themselves."""
    large = bytes(50_000)
    to_self = await comm.Irecv(bytearray(3), comm.rank, 9)
    await comm.Send(b"own", comm.rank, 9)
    await to_self.Wait()
    if comm.rank == 0:
        await comm.Send(b"short", 1, 1)
        await comm.Ssend(large, 1, 2)
        await comm.send({"large": large}, 1, 3)
        await comm.send("probed", 1, 4)
        await comm.Send(b"too long", 1, 5)
        await comm.barrier()
    elif comm.rank == 1:
        await comm.Recv(bytearray(5), 0, 1)
        await comm.Recv(bytearray(len(large)), 0, 2)
        assert (await comm.recv(None, 0, 3))["large"] == large
        message = await comm.mprobe(0, 4)
        assert await message.recv() == "probed"
        cancelled = await comm.Irecv(bytearray(1), 0, 77)
        await cancelled.Cancel()
        await cancelled.Wait()
        with pytest.raises(MPIError) as truncated:
            await comm.Recv(bytearray(3), 0, 5)
        assert truncated.value.error_class == ERR_TRUNCATE
        await comm.barrier()
    assert await comm.allreduce(1) == 2


async def send_to_all_others(comm: Comm, node: Node) -> None:
    """Every rank sends a message to each other rank, and none receives."""
    for peer in range(comm.size):
        if peer != comm.rank:
            await comm.Isend(bytes(4), peer)
    await node.sleep(10_000_000)


async def fail_before_the_receive(comm: Comm, node: Node) -> None:
    """Rank 0 sends to rank 1, which ends with an error before it receives."""
    if comm.rank == 0:
        await comm.Isend(bytes(4), 1)
        await node.sleep(10_000_000)
    else:
        raise ValueError("no more")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_messages_without_a_receive_are_noted(tmp_path: Path, protocol: str) -> None:
    assert notes_of(receive_one_of_three, protocol, tmp_path / "run", 3) == [f"n1 sent 2 messages to n2 {NOTE}"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_received_cancelled_and_truncated_messages_are_not_noted(tmp_path: Path, protocol: str) -> None:
    assert notes_of(receive_by_every_call, protocol, tmp_path / "run") == []


def test_notes_name_three_pairs_and_count_the_others(tmp_path: Path) -> None:
    notes = notes_of(send_to_all_others, "am2", tmp_path / "run", 3)
    assert len(notes) == 4
    assert notes[0] == f"n1 sent 1 message to n2 {NOTE}"
    assert notes[3] == "3 messages of 3 other pairs of ranks were not received, either"


def test_equal_notes_of_several_repetitions_are_shown_once(tmp_path: Path) -> None:
    assert notes_of(receive_one_of_three, "am2", tmp_path / "run", repeat=2) == [f"n1 sent 2 messages to n2 {NOTE}"]
    assert (tmp_path / "run/repeat-2/message-counts.jsonl").is_file()


def test_a_failed_program_has_its_error_and_no_note(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="no more") as failed:
        notes_of(fail_before_the_receive, "am2", tmp_path / "run")
    assert NOTE not in str(failed.value)
