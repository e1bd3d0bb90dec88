"""A commit made ready: ids checked, digests computed, answers at hand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stores.commits import (
    Commit,
    CommitHead,
    CommitResult,
    OperationOutcome,
    Verdict,
    repeated,
    spans_of,
)
from stores.digests import commit_digest, message_text, operation_digest
from stores.errors import IdempotencyConflictError
from stores.identifiers import check_identifier
from stores.operations import AppendEvent, EventContext, RegisterRun, SaveSnapshot, Write


@dataclass(frozen=True, kw_only=True)
class PreparedCommit:
    """A commit with the digest of each operation and of the whole.

    `texts` has the messages of each operation as they are to be stored, by position. Digests are of
    what the messages say, wherever their content lies, so that a repeat with another threshold or
    media store is the same commit.
    """

    commit: Commit
    digests: tuple[str, ...]
    digest: str
    texts: tuple[Mapping[int, str], ...]

    @property
    def number(self) -> int | None:
        """The commit's number, `None` outside a workflow."""
        return self.commit.position.number if self.commit.position else None

    @property
    def branch(self) -> str:
        """The branch of the rows that it writes."""
        return self.commit.position.branch if self.commit.position else self.commit.branch

    @property
    def run_ids(self) -> list[str]:
        """The runs that it is about, in order of first appearance."""
        return list(dict.fromkeys(each.run_id for each in self.commit.operations))

    @property
    def continued_run_ids(self) -> list[str]:
        """The runs that its registrations claim to continue."""
        registrations = (each for each in self.commit.operations if isinstance(each, RegisterRun))
        sources = (each.continued_from for each in registrations)
        return list(dict.fromkeys(each for each in sources if each is not None))

    def result(self, verdict: Verdict, outcomes: Iterable[OperationOutcome] = ()) -> CommitResult:
        """The answer to this commit."""
        return CommitResult(
            verdict=verdict,
            number=self.number,
            digest=self.digest,
            spans=spans_of(self.commit.operations),
            outcomes=tuple(outcomes),
        )

    def suppressed(self, head: CommitHead) -> CommitResult:
        """The answer when the same commit was written before, as `head` tells."""
        return self.result("suppress", repeated(head, len(self.commit.operations)))

    def conflict(self) -> IdempotencyConflictError:
        """The error when other content was written under the same number and fence."""
        return IdempotencyConflictError("commit", ", ".join(self.run_ids), str(self.number))


def prepare(
    commit: Commit,
    digests: tuple[str, ...] | None = None,
    texts: tuple[Mapping[int, str], ...] | None = None,
) -> PreparedCommit:
    """Check the ids of a commit and compute its digests and texts, unless the caller knows those.

    Raises:
        InvalidIdentifierError: an id is malformed. Not retryable.
    """
    check_identifiers(commit)
    if digests is None:
        digests = tuple(operation_digest(each) for each in commit.operations)
    if texts is None:
        texts = plain_texts(commit.operations)
    return PreparedCommit(
        commit=commit,
        digests=digests,
        digest=commit_digest(commit.operations, digests),
        texts=texts,
    )


def plain_texts(operations: Sequence[Write]) -> tuple[Mapping[int, str], ...]:
    """The messages of each operation with all of their content, by position."""
    return tuple(
        {entry.position: message_text(entry.message) for entry in each.entries}
        if isinstance(each, SaveSnapshot)
        else {}
        for each in operations
    )


def check_identifiers(commit: Commit) -> None:
    """Return when all ids of a commit are well formed.

    Raises:
        InvalidIdentifierError: one is not. Not retryable.
    """
    for operation in commit.operations:
        _check_identifiers(operation)


def _check_identifiers(operation: Write) -> None:
    check_identifier("run_id", operation.run_id)
    lineage: RegisterRun | EventContext | None = None
    if isinstance(operation, RegisterRun):
        lineage = operation
    elif isinstance(operation, AppendEvent | SaveSnapshot):
        lineage = operation.context
    if lineage is not None and lineage.conversation_id is not None:
        check_identifier("conversation_id", lineage.conversation_id)
    if lineage is not None and lineage.parent_run_id is not None:
        check_identifier("parent_run_id", lineage.parent_run_id)
    if isinstance(operation, RegisterRun):
        for name in ("continued_from", "forked_from"):
            source = getattr(operation, name)
            if source is not None:
                check_identifier(name, source)
