"""A Temporal server behind mutual TLS and a bearer token: certificates of a test's own, and haproxy with them."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

PROGRAM = shutil.which("haproxy") or shutil.which("/usr/sbin/haproxy")

SETTINGS = """
defaults
  mode http
  timeout connect 5s
  timeout client 100s
  timeout server 100s
  timeout http-keep-alive 100s
frontend temporal
  bind 127.0.0.1:{port} ssl crt {folder}/server.pem ca-file {folder}/accepted.pem verify required alpn h2
  http-request deny deny_status 401 unless {{ req.hdr(authorization) -m str "Bearer {token}" }}
  default_backend server
backend server
  server one {target} proto h2
"""


class Authority:
    """A certificate authority that signs for one test."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = signed.sign(self._key, SHA256()).public_bytes(Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return a certificate for a name and 127.0.0.1, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        places = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))])
        made = self._builder(subject, key).add_extension(places, critical=False).sign(self._key, SHA256())
        return made.public_bytes(Encoding.PEM), key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )


class TlsProxy:
    """haproxy before a Temporal server: it takes clients whose certificate an accepted authority signed, and who have the token."""

    def __init__(self, folder: Path, target: str, servers: Authority, token: str) -> None:
        self._folder, self._servers, self._token = folder, servers, token
        (folder / "ca.pem").write_bytes(servers.certificate)
        self.renew_own()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        (folder / "haproxy.cfg").write_text(SETTINGS.format(port=self.port, folder=folder, token=token, target=target))
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """What Temporal's environment has to say for a client: the address, the token, the authority and the client's files."""
        files = {"SERVER_CA_CERT": "ca.pem", "CLIENT_CERT": "client.pem", "CLIENT_KEY": "client.key"}
        paths = {f"TEMPORAL_TLS_{name}_PATH": str(self._folder / file) for name, file in files.items()}
        return {"TEMPORAL_ADDRESS": self.address, "TEMPORAL_API_KEY": self._token, **paths}

    def renew(self, authority: Authority) -> None:
        """Write a certificate of this authority to the client's files."""
        certificate, key = authority.issue("client.test")
        (self._folder / "client.pem").write_bytes(certificate)
        (self._folder / "client.key").write_bytes(key)

    def renew_own(self) -> None:
        """Write another certificate of its own, which counts from the next start."""
        certificate, key = self._servers.issue("temporal.test")
        (self._folder / "server.pem").write_bytes(certificate + key)

    def start(self, *accepted: Authority) -> None:
        """Take clients of these authorities alone; connections of before are dropped."""
        self.stop()
        (self._folder / "accepted.pem").write_bytes(b"".join(authority.certificate for authority in accepted))
        command = [str(PROGRAM), "-f", str(self._folder / "haproxy.cfg"), "-db"]
        self._running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError("haproxy does not listen")

    def stop(self) -> None:
        """Take nobody any more."""
        if self._running is not None:
            self._running.send_signal(signal.SIGTERM)
            self._running.wait(20)
            self._running = None


@contextlib.contextmanager
def running(proxy: TlsProxy, accepted: Authority) -> Iterator[TlsProxy]:
    """Run the proxy while the block runs."""
    proxy.start(accepted)
    try:
        yield proxy
    finally:
        proxy.stop()
