"""`perdure new-agent`: a bundled agent, copied under another name as a start."""

import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.failures import CommandError, WrongUsageError
from cli.output import note, print_text

SOURCES = Path(__file__).parents[1] / "agents"


def new_agent_command(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Of agent and module.", show_default=False)
    ],
    like: Annotated[
        Literal["conversation"], typer.Option(help="The bundled agent to begin with.")
    ] = "conversation",
    into: Annotated[
        Path, typer.Option(help="Folder in which the agent's folder is made.")
    ] = Path(),
) -> None:
    """Copy a bundled agent under another name: its module, prompt and metadata.

    Nothing that is there is overwritten.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        message = f"{name!r} is no name of a Python module; use letters, digits and _"
        raise WrongUsageError(message)
    target = into / name
    if target.exists():
        message = f"{str(target)!r} is there already; choose another name, or --into another folder"
        raise CommandError(message)
    target.mkdir(parents=True)
    for source in sorted((SOURCES / like).iterdir()):
        if source.is_file():
            (target / source.name).write_text(_renamed(source.read_text(), like, name))
            print_text(str(target / source.name))
    note(
        f"Serve it: PERDURE_AGENTS={name}.agent:chat_agent, with the folder that holds {name}/ on "
        f"PYTHONPATH. Talk to it: perdure chat {name}"
    )


def _renamed(text: str, like: str, name: str) -> str:
    """The text with the agent's name and module replaced where they stand for those."""
    text = text.replace(f"agents.{like}.", f"{name}.").replace(f"agents.{like}`", f"{name}`")
    text = text.replace(f'name="{like}"', f'name="{name}"')
    text = text.replace(f'agent: str = "{like}"', f'agent: str = "{name}"')
    return re.sub(r'(?m)^(title) = ".*"$', rf'\1 = "{name}"', text).replace(
        f"The agent `{like}`", f"The agent `{name}`"
    )
