"""Two packages with the same EtherType: affected runs and commands report both packages, others work."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import testbed
from testbed import Cluster, packages, registry
from testbed.cli.main import testbed as command
from testbed.errors import ConflictError, TestbedError
from testbed.fields import known_fields
from testbed.observe.format.layers import frame_modules

POSTCARD = Path(__file__).with_name("outside") / "postcard"
EMP, MYRINET, FREE = 0x88B5, 0x88B6, 0x88B7
BUILTIN_EMP = rf"emp \(package netns-testbed {registry.offered(registry.FIELDS)['emp'].package_and_version()[1]}\)"

Install = Callable[..., None]


async def idle(comm: object, node: object) -> None: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a copy of tests/sim/outside/postcard under another name."""

    def install_copy(
        package: str, ethertype: int, version: str = "1.0", *, name: str = "", fields: bool = True, begins: bytes = b""
    ) -> None:
        name = name or package
        metadata = tmp_path / f"{package}_nic-{version}.dist-info"
        metadata.mkdir()
        shutil.copytree(POSTCARD, tmp_path / package)
        for path in (tmp_path / package).glob("*.py"):
            path.write_text(path.read_text().replace("postcard", package))
        codec = tmp_path / package / "codec.py"
        source = codec.read_text().replace(
            "ETHERTYPE: Final = 0x88B7", f"ETHERTYPE: Final = {ethertype}\nBEGINS: Final = {begins!r}"
        )
        codec.write_text(source + ("ROUTED: Final = True\n" if begins else ""))
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}-nic\nVersion: {version}\n\nA NIC.\n"
        )
        entries = f"[testbed.protocols]\n{name} = {package}.protocol:PROTOCOL\n"
        (metadata / "entry_points.txt").write_text(
            entries + (f"[testbed.fields]\n{name} = {package}.codec\n" if fields else "")
        )
        clear_caches()

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield install_copy
    for module in set(sys.modules) - before:
        if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[module]
    clear_caches()


def clear_caches() -> None:
    """Clear the caches of registered packages."""
    known_fields.cache_clear()
    packages.protocol_clashes.cache_clear()
    frame_modules.cache_clear()


def simulate(protocol: str) -> None:
    testbed.run(Cluster.star(2, loss="5%"), idle, protocol=protocol, mode="sim")


def test_a_package_with_the_ethertype_of_a_builtin_protocol_is_reported_with_that_protocol(install: Install) -> None:
    install("stranger", EMP, "1.2")
    sentence = rf"EtherType 0x88B5 is claimed twice, by {BUILTIN_EMP} and by stranger \(package stranger-nic 1\.2\)"
    for protocol in ("emp", "stranger", "am2"):
        with pytest.raises(ConflictError, match=sentence):
            simulate(protocol)
    with pytest.raises(ConflictError, match=sentence):
        known_fields()
    with pytest.raises(ConflictError, match=sentence):
        frame_modules()


def test_two_installed_packages_with_one_ethertype_are_reported(install: Install) -> None:
    install("birch", FREE, "0.1")
    install("aspen", FREE, "2.0")
    with pytest.raises(
        ConflictError, match=r"0x88B7 .* aspen \(package aspen-nic 2\.0\) and by birch \(package birch-nic 0\.1\)"
    ):
        simulate("emp")
    with pytest.raises(ConflictError) as raised:
        known_fields()
    assert packages.clashes() == [str(raised.value)]


def test_a_clashing_protocol_without_fields_is_reported(install: Install) -> None:
    install("stranger", EMP, fields=False)
    assert "emp.type" in known_fields()  # no fields clash
    for protocol in ("emp", "stranger"):
        with pytest.raises(ConflictError, match=rf"{BUILTIN_EMP} and by stranger \(package stranger-nic 1\.0\)"):
            simulate(protocol)


def test_fields_offered_by_two_packages_under_one_name_are_reported(install: Install) -> None:
    install("copied", EMP, name="emp")
    with pytest.raises(
        ConflictError, match=r"fields 'emp' are offered by package (copied-nic 1\.0 and|netns-).* by package"
    ):
        known_fields()


def test_a_package_with_the_ethertype_of_a_standard_header_is_reported(install: Install) -> None:
    install("stranger", 0x0800)
    with pytest.raises(ConflictError, match=r"0x0800 .* by ip \(a standard header\) and by stranger"):
        known_fields()


def test_packages_with_different_first_bytes_may_share_an_ethertype(install: Install) -> None:
    install("letters", MYRINET, begins=b"\x07\x77")
    install("postcards", FREE)
    assert {"letters.kind", "postcards.kind", "am2.kind"} <= set(known_fields().names())
    assert packages.clashes() == []
    simulate("postcards")


def test_a_package_that_is_twice_on_the_path_does_not_clash(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("postcards", FREE)
    monkeypatch.syspath_prepend(shutil.copytree(tmp_path, tmp_path / "again"))
    clear_caches()
    assert "postcards.kind" in known_fields()
    assert packages.clashes() == []


def test_kernel_protocols_do_not_clash(install: Install) -> None:
    install("stranger", EMP)
    assert packages.protocol("tcp").ethertype == 0


def test_protocol_list_warns_of_a_clash_and_succeeds(install: Install) -> None:
    install("stranger", EMP, "1.2")
    result = CliRunner().invoke(command, ["protocol", "list"])
    assert result.exit_code == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.partition("\n\n")[0].splitlines()}
    assert lines["stranger"] == "stranger stranger-nic 1.2 0x88B5 sim, live, dilated inline, shared ethernet"
    assert lines["am2"].endswith("0x88B6 sim, live, dilated inline, shared ethernet, myrinet")
    assert lines["udp"].endswith("the kernel's own live ethernet")
    assert "package stranger-nic 1.2" in result.stderr


def test_a_protocol_that_cannot_be_imported_is_listed_with_the_reason(install: Install, tmp_path: Path) -> None:
    install("broken", FREE, fields=False)
    module = tmp_path / "broken" / "protocol.py"
    module.write_text("raise RuntimeError('no licence')\n")
    (broken,) = [protocol for protocol in packages.offered_protocols() if protocol.name == "broken"]
    reason = f"RuntimeError: no licence ({module}:1)"
    assert (broken.package, broken.modes, broken.problem) == ("broken-nic", (), reason)
    simulate("emp")
    with pytest.raises(TestbedError, match="cannot be imported"):
        simulate("broken")
