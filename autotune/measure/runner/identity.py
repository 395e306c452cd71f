"""A certificate for one study, which whoever dials it pins."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autotune.errors import UsageError
from autotune.installed import missing
from autotune.measure.runner.channel import Identity

VALID = timedelta(days=365)
SLACK = timedelta(days=1)
"""Clocks of hosts differ."""


def check_installed() -> None:
    """Raises UsageError where what makes certificates is not installed."""
    if why := missing("cryptography"):
        raise UsageError(f"--launch: TLS between hosts: {why}")


def identity(folder: Path | None = None) -> Identity:
    """A new one. Its private key is in this process alone, and in `folder` for a moment."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "autotune study")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody resumes
    with tempfile.TemporaryDirectory(dir=folder) as own:  # of mode 0700; ssl reads files alone
        key, chain = Path(own) / "key", Path(own) / "chain"
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        chain.write_bytes(pem)
        context.load_cert_chain(chain, key)
    return Identity(pem.decode(), context)
