"""A probe of a machine that refuses namespaces or their mounts ends with a reason, not with an error."""

from __future__ import annotations

import errno

import pytest

from testbed.errors import PermissionDeniedError
from testbed.kernel import capability_probe, userns


@pytest.mark.parametrize(
    ("error", "details"),
    [
        (OSError(errno.EPERM, "Operation not permitted", "/run/netns"), ["Operation not permitted: /run/netns"] * 2),
        (PermissionDeniedError("not here"), ["refused", "not here"]),
    ],
)
def test_a_refused_user_namespace_is_a_missing_capability(
    monkeypatch: pytest.MonkeyPatch, error: Exception, details: list[str]
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(userns, "is_root", lambda: False)
    monkeypatch.setattr(userns, "become_namespace_root", refuse)
    capabilities = {capability.name: capability for capability in capability_probe.probe()}
    probed = [capabilities[name] for name in ("user namespaces", "network namespaces")]
    assert [capability.detail for capability in probed] == details
    assert not any(capability.available for capability in probed)
    assert all(capability.remedy for capability in probed)
