"""`perdure access`: who may read conversations over the API and with the tools of agents."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from cli.connections import current_settings, opened_mongodb
from cli.failures import WrongUsageError
from cli.options import AsJson
from cli.output import moment, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from stores.access import AccessStore, AccessToken, Grant

Result = TypeVar("Result")

access_app = typer.Typer(
    name="access",
    help="Say who may read conversations, over the API and with the tools of agents.",
    epilog="Example: perdure access list",
    no_args_is_help=True,
)

PrincipalId = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL", help="Its id: that of submits, or `sub` of a JWT.", show_default=False
    ),
]
WorkspaceId = Annotated[str | None, typer.Option("--workspace", help="Tenant.", show_default=False)]
ConversationId = Annotated[
    str | None, typer.Option("--conversation", help="One conversation.", show_default=False)
]


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the command line has no other clock


def _done(work: "Callable[[AccessStore], Awaitable[Result]]") -> Result:
    async def run() -> Result:
        async with opened_mongodb(current_settings()) as store:
            return await work(store.conversations.access)

    return asyncio.run(run())


@access_app.command(
    "add-principal", epilog="Example: perdure access add-principal ann --kind human"
)
def add_principal_command(
    principal: PrincipalId,
    *,
    kind: Annotated[Literal["human", "agent"], typer.Option(help="What it is.")] = "human",
    as_json: AsJson = False,
) -> None:
    """Add somebody who may be given rights; without any, it reads nothing."""

    async def work(access: "AccessStore") -> Any:  # noqa: ANN401 - printed
        return await access.add_principal(principal, kind, now=_now())

    added = _done(work)
    if as_json:
        print_json(asdict(added))
        return
    print_text(f"{added.kind} {added.principal_id}, since {moment(added.created_at)}")


@access_app.command("add-token", epilog="Example: perdure access add-token ann --days 90")
def add_token_command(
    principal: PrincipalId,
    *,
    days: Annotated[
        float | None, typer.Option(min=0, help="It expires after so many; never by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a bearer token for the API. It is shown this once; only its hash is kept."""
    now = _now()
    expires_at = None if days is None else now + timedelta(days=days)

    async def work(access: "AccessStore") -> "tuple[str, AccessToken]":
        return await access.add_token(principal, now=now, expires_at=expires_at)

    token, kept = _done(work)
    if as_json:
        print_json({"token": token, **_told(kept)})
        return
    print_text(token)
    until = f"until {moment(kept.expires_at)}" if kept.expires_at else "until it is revoked"
    note(f"token {kept.token_id} of {principal}, {until}; it is not shown again")


@access_app.command("grant", epilog="Example: perdure access grant ann --workspace default")
def grant_command(
    principal: PrincipalId,
    *,
    workspace: Annotated[str, typer.Option(envvar="PERDURE_WORKSPACE", help="Tenant.")] = "default",
    conversation: ConversationId = None,
    own: Annotated[
        bool, typer.Option("--own", help="Only those that it began and those it is granted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make it a member of a workspace, who reads all of its conversations, its own, or one more."""

    async def work(access: "AccessStore") -> "list[Grant]":
        return await access.grant(
            principal,
            workspace,
            conversation_id=conversation,
            reach="own" if own else "all",
            now=_now(),
        )

    _show_grants(_done(work), as_json=as_json)


@access_app.command("revoke", epilog="Example: perdure access revoke ann --token 3f2a91c07b5e")
def revoke_command(
    principal: PrincipalId,
    *,
    workspace: WorkspaceId = None,
    conversation: ConversationId = None,
    token: Annotated[
        str | None, typer.Option(help="Id of a token, as `list` shows it.", show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that it has: every grant and every token.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take rights away: they are gone with the next request."""
    named = [each for each in (workspace, token, True if everything else None) if each]
    if len(named) != 1 or (conversation is not None and workspace is None):
        message = (
            "name what goes: --workspace, with --conversation for one of its conversations; or "
            "--token; or --all"
        )
        raise WrongUsageError(message)

    async def work(access: "AccessStore") -> "tuple[list[Grant], list[AccessToken]]":
        grants: list[Grant] = []
        tokens: list[AccessToken] = []
        if token is None:
            grants = await access.revoke(principal, workspace, conversation)
        if token is not None or everything:
            tokens = await access.revoke_tokens(principal, token)
        return grants, tokens

    grants, tokens = _done(work)
    if as_json:
        told = {"grants": [asdict(e) for e in grants], "tokens": [_told(e) for e in tokens]}
        print_json(told)
        return
    print_text(f"revoked {len(grants)} grants and {len(tokens)} tokens of {principal}")


@access_app.command("list", epilog="Example: perdure access list --json")
def list_command(*, as_json: AsJson = False) -> None:
    """List who may read what."""

    async def work(access: "AccessStore") -> list[dict[str, Any]]:
        return [
            {
                **asdict(each),
                "grants": [asdict(e) for e in await access.list_grants(each.principal_id)],
                "tokens": [_told(e) for e in await access.list_tokens(each.principal_id)],
            }
            for each in await access.list_principals()
        ]

    found = _done(work)
    if as_json:
        print_json({"principals": found})
        return
    if not found:
        note("There is no principal: `perdure access add-principal` adds one.")
        return
    print_table(
        ("principal", "kind", "reads", "tokens"),
        [
            (
                each["principal_id"],
                each["kind"],
                "\n".join(_reads(grant) for grant in each["grants"]),
                "\n".join(_until(token) for token in each["tokens"]),
            )
            for each in found
        ],
    )


def _show_grants(grants: "list[Grant]", *, as_json: bool) -> None:
    if as_json:
        print_json({"grants": [asdict(each) for each in grants]})
        return
    for each in grants:
        print_text(f"{each.principal_id} reads {_reads(asdict(each))}")


def _reads(grant: dict[str, Any]) -> str:
    workspace = grant["workspace_id"]
    if grant["conversation_id"] is not None:
        return f"{workspace}: {grant['conversation_id']}"
    return f"{workspace}: {'all' if grant['reach'] == 'all' else 'its own'}"


def _until(token: dict[str, Any]) -> str:
    end = token["expires_at"]
    return f"{token['token_id']}, until {moment(end)}" if end else token["token_id"]


def _told(token: "AccessToken") -> dict[str, Any]:
    """What is told of a token: not even its hash."""
    return {
        "token_id": token.token_id,
        "principal_id": token.principal_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    }
