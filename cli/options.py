"""Arguments and options that several commands share."""

from typing import Annotated

import typer

AsJson = Annotated[
    bool, typer.Option("--json", envvar="PERDURE_JSON", help="Print one JSON document.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.", show_default=False)]
Workspace = Annotated[
    str, typer.Option(envvar="PERDURE_WORKSPACE", help="Tenant that the run belongs to.")
]
