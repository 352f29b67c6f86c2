"""Keys that are offered to an sshd, selected as by OpenSSH's client from ssh_config(5).

The keywords are PubkeyAuthentication, IdentityFile, CertificateFile, IdentityAgent and IdentitiesOnly. Keys are offered in
this order: certificates, keys of the agent that belong to identity files, the agent's other keys, identity files.
"""

from __future__ import annotations

import os
import re
import socket
from base64 import b64decode
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from paramiko import Message, PKey, Transport
from paramiko.agent import AgentKey, AgentSSH
from paramiko.auth_strategy import AuthStrategy
from paramiko.pkey import PublicBlob, UnknownKeyType
from paramiko.ssh_exception import AuthenticationException, PasswordRequiredException, SSHException

from testbed.errors import reason_of

_DEFAULT_FILES: Final = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_AGENT_VARIABLE: Final = "SSH_AUTH_SOCK"
_OPENSSH_KEY: Final = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.*)-----END", re.DOTALL)
_OPENSSH_MAGIC: Final = b"openssh-key-v1\0"  # PROTOCOL.key of OpenSSH
_PROMPTS: Final = frozenset({"keyboard-interactive", "password"})


class NoIdentityError(SSHException):  # type: ignore[misc]  # paramiko has no types
    """No key can be offered, for the reason in the message."""


class _Agent(AgentSSH):  # type: ignore[misc]
    """A connection to an SSH agent. path: path of the agent's socket. Raises OSError, SSHException."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            self._connect(connection)
        except (OSError, SSHException):
            connection.close()
            raise

    def close(self) -> None:
        self._close()


class Identities(AuthStrategy):  # type: ignore[misc]
    """Login of a user with keys. options: options of the host in ssh_config. keys: key files that are tried first, as with
    `ssh -i`."""

    def __init__(self, user: str, options: Mapping[str, object], keys: Sequence[str]) -> None:
        super().__init__(ssh_config=options)
        self._user = user
        self._options = options
        self._identities_only = self._flag("identitiesonly", default="no")
        configured = options.get("identityfile", [])
        assert isinstance(configured, list)  # SSHConfig collects all of them
        self._configured = [*keys, *configured]
        self._files = [_expand(name) for name in self._configured or _DEFAULT_FILES if name.lower() != "none"]
        self._unusable: SSHException | None = None  # why the first identity file cannot be used
        self._unreachable: SSHException | None = None  # why the agent cannot be used

    def authenticate(self, transport: Transport) -> None:
        """Log in. Raises AuthenticationException, and NoIdentityError if there is no key to offer."""
        refusal: SSHException | None = None
        with closing(self.offers()) as offers:
            for count, key in enumerate(offers, 1):
                try:
                    further = set(transport.auth_publickey(self._user, key))
                except SSHException as error:
                    if not transport.is_active():
                        raise _disconnect_error(error, count) from error
                    refusal = error
                    continue
                if further & _PROMPTS:
                    further = set(transport.auth_interactive_dumb(self._user))
                if not further:
                    return
                refusal = AuthenticationException(f"it asks for {' and '.join(sorted(further))} as well")
        raise self._unusable or refusal or self._unreachable or NoIdentityError(self._no_key_reason())

    def offers(self) -> Generator[PKey]:
        """Yield the keys to offer. A certificate is the `public_blob` of its key. The connection to the agent is open until
        the generator is closed."""
        if self._flag("pubkeyauthentication", default="yes"):
            agent = self._agent()
            try:
                yield from self._ordered({key.blob: key for key in agent.get_keys()} if agent is not None else {})
            finally:
                if agent is not None:
                    agent.close()

    def _ordered(self, agent: Mapping[bytes, AgentKey]) -> Iterator[PKey]:
        """Yield the keys to offer, in order. agent: keys of the agent, by their public parts."""
        publics = {file: _public_key(file) for file in self._files if _exists(file)}
        listed = {public: file for file, public in publics.items() if public is not None}
        for certificate in self._certificates(publics):
            for signer in dict.fromkeys((*listed, *agent)):
                if _certifies(certificate.key_blob, signer):
                    key = self._signer(agent, signer, listed)
                    if key is not None:
                        key.public_blob = certificate
                        yield key
        yield from (key for public, key in agent.items() if public in listed)
        if not self._identities_only:
            yield from (key for public, key in agent.items() if public not in listed)
        for file, public in publics.items():
            if (public is None or public not in agent) and (key := self._private_key(file)) is not None:
                yield key

    def _flag(self, keyword: str, default: str) -> bool:
        return str(self._options.get(keyword, default)).lower() not in ("no", "false")

    def _agent(self) -> _Agent | None:
        path = _agent_socket(str(self._options.get("identityagent", _AGENT_VARIABLE)))
        if path is None:
            return None
        try:
            return _Agent(path)
        except (OSError, SSHException) as error:
            self._unreachable = NoIdentityError(f"the agent {path} cannot be used: {_text(error)}")
            return None

    def _certificates(self, files: Mapping[Path, object]) -> Iterator[PublicBlob]:
        """Yield the configured certificate; if none is configured, the certificates beside identity files."""
        configured = self._options.get("certificatefile")
        paths = [Path(f"{file}-cert.pub") for file in files] if configured is None else [_expand(str(configured))]
        for path in paths:
            if path.is_file():
                try:
                    yield PublicBlob.from_file(path)
                except (OSError, ValueError) as error:
                    self._note(NoIdentityError(f"{path} is not a certificate: {_text(error)}"))

    def _signer(self, agent: Mapping[bytes, AgentKey], public: bytes, files: Mapping[bytes, Path]) -> PKey | None:
        """Return a new object for the private key of a public key; None if it cannot be used."""
        if (key := agent.get(public)) is not None:
            return AgentKey(key.agent, key.blob)
        return self._private_key(files[public])

    def _private_key(self, file: Path) -> PKey | None:
        """Load the key of an identity file, without a certificate. If that fails, note the reason and return None."""
        try:
            if not file.is_file() or b"PRIVATE KEY" not in file.read_bytes():
                raise NoIdentityError(
                    f"only the public part of the key {file} exists, and no agent has the key (ssh-add)"
                )
            key = PKey.from_path(file)
        except NoIdentityError as error:
            self._note(error)
        except (PasswordRequiredException, TypeError):  # TypeError: from cryptography
            self._note(PasswordRequiredException(f"the key {file} has a passphrase, and no agent has it (ssh-add)"))
        except (OSError, ValueError, UnknownKeyType, SSHException) as error:
            self._note(NoIdentityError(f"the key {file} cannot be used: {_text(error)}"))
        else:
            key.public_blob = None
            return key
        return None

    def _note(self, problem: SSHException) -> None:
        self._unusable = self._unusable or problem

    def _no_key_reason(self) -> str:
        """Return the reason why there is no key to offer."""
        if not self._flag("pubkeyauthentication", default="yes"):
            return "PubkeyAuthentication is 'no' in the configuration of ssh, and there is no other way to log in"
        agent = "" if self._identities_only else ", and no agent has a key (ssh-add)"
        if self._configured:
            return f"there is no identity file {' or '.join(self._configured)}{agent}"
        if self._identities_only:
            return "no key is in the machines file or ~/.ssh, and IdentitiesOnly excludes those of an agent"
        return "no key is in the machines file, ~/.ssh or an agent (ssh-add)"


def _disconnect_error(error: SSHException, count: int) -> SSHException:
    """Return the error of a login during which sshd has ended the connection. count: number of keys offered."""
    if count == 1:
        return error
    return AuthenticationException(f"it ended the connection after {count} keys: 'IdentitiesOnly yes' offers fewer")


def _agent_socket(value: str) -> str | None:
    """Return the path of the agent's socket from a value of IdentityAgent; None: no agent."""
    if value == "none":
        return None
    if value == _AGENT_VARIABLE:
        return os.environ.get(value) or None
    if re.match(r"\$[^{]", value):
        return os.environ.get(value[1:]) or None
    return str(_expand(value))


def _expand(name: str) -> Path:
    """Expand `~` and `${VARIABLE}` in the name of a file in ssh_config."""
    return Path(re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), name)).expanduser()


def _exists(file: Path) -> bool:
    """Whether an identity file or its public part exists."""
    return file.is_file() or Path(f"{file}.pub").is_file()


def _public_key(file: Path) -> bytes | None:
    """Return the public part of an identity file, which may have a passphrase or contain only this part; None: unknown."""
    for path in (file, Path(f"{file}.pub")):
        try:
            text = path.read_bytes()
            if (private := _OPENSSH_KEY.search(text)) is not None:
                return _public_of_private(b64decode(private[1]))
            if b"PRIVATE KEY" not in text:
                blob: bytes = PublicBlob.from_string(text.decode()).key_blob
                return blob
        except (OSError, ValueError):  # `_private_key` will report the problem
            continue
    try:
        return PKey.from_path(file).asbytes()  # type: ignore[no-any-return]
    except (OSError, ValueError, TypeError, UnknownKeyType, SSHException):
        return None


def _public_of_private(key: bytes) -> bytes:
    """Return the public key that is stored unencrypted in a private key of OpenSSH's format. Raises ValueError."""
    if not key.startswith(_OPENSSH_MAGIC):
        raise ValueError("not a key of OpenSSH's format")
    fields = Message(key.removeprefix(_OPENSSH_MAGIC))
    for _ in ("cipher", "key derivation", "its options"):
        fields.get_string()
    fields.get_int()  # number of keys: always 1
    public: bytes = fields.get_string()
    return public


def _certifies(certificate: bytes, public: bytes) -> bool:
    """Whether a certificate belongs to a public key: after its type and nonce, it contains the fields of the key."""
    certified, key = Message(certificate), Message(public)
    kind = key.get_text()
    if certified.get_text() != f"{kind}-cert-v01@openssh.com":
        return False
    certified.get_string()
    is_prefix: bool = certified.get_remainder().startswith(key.get_remainder())
    return is_prefix


def _text(error: Exception) -> str:
    return reason_of(error) if isinstance(error, OSError) else str(error)
