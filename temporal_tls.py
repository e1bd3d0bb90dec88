"""TLS to Temporal: what the settings say of it, and what its failures mean."""

import re
from pathlib import Path

from temporalio.service import TLSConfig

from settings import Settings


class TemporalUnavailableError(Exception):
    """Temporal could not be reached, or the namespace does not exist."""


def tls_of(settings: Settings) -> TLSConfig | bool:
    """What the settings say of TLS.

    Raises:
        TemporalUnavailableError: a file cannot be read.
    """
    files = (settings.temporal_tls_ca, settings.temporal_tls_cert, settings.temporal_tls_key)
    if not (settings.temporal_tls or settings.temporal_tls_server_name or any(files)):
        return settings.temporal_api_key is not None
    authorities, certificate, key = map(_content, files)
    return TLSConfig(
        server_root_ca_cert=authorities,
        domain=settings.temporal_tls_server_name,
        client_cert=certificate,
        client_private_key=key,
    )


def _content(path: Path | None) -> bytes | None:
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        message = f"cannot read {str(path)!r}, which PERDURE_TEMPORAL_TLS_... names: {error}"
        raise TemporalUnavailableError(message) from error


_PROBLEMS = {
    r"NotValidForName|not valid for name": "its certificate is for another name. Use the name "
    "that it is for as the address, or set PERDURE_TEMPORAL_TLS_SERVER_NAME",
    r"UnknownIssuer|CaUsedAsEndEntity|BadSignature": "its certificate is signed by an authority "
    "that is not known here. Set PERDURE_TEMPORAL_TLS_CA to a file with that authority's "
    "certificate",
    r"Expired|NotValidYet": "a certificate is not valid now. Renew it, or set the clock right",
    r"CertificateRequired|AlertReceived|BadCertificate|UnknownCA|HandshakeFailure": "it refused "
    "our certificate. Set PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMPORAL_TLS_KEY to a pair that it "
    "accepts",
    r"call error after connection.*(BrokenPipe|ConnectionReset|UnexpectedEof|connection closed)": (
        "it closed the connection after the handshake, mostly since it wants a certificate of "
        "ours. Set PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMPORAL_TLS_KEY to a pair that it accepts"
    ),
    r"InvalidMessage|InvalidContentType|CorruptMessage": "it speaks no TLS. Leave "
    "PERDURE_TEMPORAL_TLS and the like out, or correct the address",
    r"invalid peer certificate|[Cc]ertificate": "a certificate does not fit. Check "
    "PERDURE_TEMPORAL_TLS_CA, _CERT, _KEY and _SERVER_NAME",
}
"""Words of the SDK's TLS library, and what they mean here; the first that fits counts."""


def certificate_problem(words: str) -> str | None:
    """What the SDK's words about a failed connection say of a certificate; `None`: nothing."""
    for pattern, problem in _PROBLEMS.items():
        if re.search(pattern, words):
            return problem
    return None
