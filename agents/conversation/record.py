"""Records a run of the agent: `python -m agents.conversation.record` writes sample_run.md anew.

The model is the one that `PERDURE_MODEL` names; the first line of the record says which.
"""

import asyncio
import os
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from pydantic_ai.messages import ModelResponse

from agents.conversation.agent import run_chat

FOLDER = Path(__file__).parent
RECORD = FOLDER / "sample_run.md"


async def record() -> str:
    """Run the smoke input once; the record as Markdown."""
    prompt = tomllib.loads((FOLDER / "example.toml").read_text())["smoke_input"]
    began = perf_counter()
    result = await run_chat(prompt)
    seconds = perf_counter() - began
    (step,) = result.steps
    usage = result.usage
    cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    answered = [each for each in step.result.all_messages() if isinstance(each, ModelResponse)]
    model = Path(answered[-1].model_name or "unknown").name  # a local one is named by its file
    day = datetime.now(UTC).date()  # noqa: TID251 - a record says when it was made
    facts = f"{len(result.steps)} step · {usage.total_tokens} tokens · {cost} · {seconds:.1f} s"
    return f"""Recorded run · {model}, named as `{os.environ.get("PERDURE_MODEL")}`

{facts}, on {day}. Model output varies between runs. Record it again with
`python -m agents.conversation.record`.

## Input

{prompt}

## Steps

1. {step.agent} · {usage.total_tokens} tokens · {cost}

## Output

{result.output}
"""


def main() -> None:
    """Write the record and say where."""
    RECORD.write_text(asyncio.run(record()))
    sys.stdout.write(f"wrote {RECORD}\n")


if __name__ == "__main__":
    main()
