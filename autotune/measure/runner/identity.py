"""A certificate for one study; its agents pin it."""

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
"""Allowance for differing clocks of hosts."""


def check_installed() -> None:
    """Raises UsageError without the package that makes certificates."""
    if why := missing("cryptography"):
        raise UsageError(f"--launch: TLS between hosts: {why}")


def identity(folder: Path | None = None) -> Identity:
    """A new certificate. Only this process has its private key; `folder` has it for a moment."""
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
    context.num_tickets = 0  # nobody resumes a session
    with tempfile.TemporaryDirectory(dir=folder) as own:  # mode 0700; ssl only reads files
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
