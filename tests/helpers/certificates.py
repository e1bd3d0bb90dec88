"""An authority and certificates of its own, made for one test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Certificates:
    """Files: the authority's certificate, and a server's with its key for the name it was made for.

    `both` holds certificate and key, as MongoDB takes them.
    """

    authority: Path
    certificate: Path
    key: Path
    both: Path


def make_certificates(directory: Path, name: str) -> Certificates:
    """Certificates for a server of that DNS name."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    authority = _begun(issuer, issuer, ca_key).add_extension(constraints, critical=True)
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    server = _begun(subject, issuer, key).add_extension(names, critical=False)
    files = Certificates(
        *(directory / each for each in ("ca.pem", "cert.pem", "key.pem", "both.pem"))
    )
    pem = serialization.Encoding.PEM
    files.authority.write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    files.certificate.write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    files.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files.both.write_bytes(files.certificate.read_bytes() + files.key.read_bytes())
    return files


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
