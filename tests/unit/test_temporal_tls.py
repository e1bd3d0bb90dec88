"""What the SDK says of a connection that Temporal closed, in words that help."""

import pytest

from temporal_tls import certificate_problem

AFTER_HANDSHAKE = "Failed client connect: `get_system_info` call error after connection: "


BROKEN = 'Status { code: Unknown, source: Some(Os { kind: BrokenPipe, message: "Broken pipe" }) }'
CLOSED = 'Status { code: Cancelled, source: Some(hyper::Error(Canceled, "connection closed")) }'


@pytest.mark.parametrize("words", [BROKEN, CLOSED])
def test_a_server_that_closes_after_the_handshake_mostly_wants_a_certificate(words: str) -> None:
    problem = certificate_problem(AFTER_HANDSHAKE + words)
    assert problem is not None
    assert "PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMPORAL_TLS_KEY" in problem


def test_a_server_that_does_not_answer_is_no_matter_of_certificates() -> None:
    assert certificate_problem("Failed client connect: Server connection error: refused") is None
