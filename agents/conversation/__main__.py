"""A demo: `python -m agents.conversation` prints two replies, and one as it is generated."""

import asyncio
import sys

from agents.conversation.agent import Conversation


async def demo() -> None:
    """Talk to the model that `PERDURE_MODEL` names."""
    conversation = Conversation()
    for text in (
        "Hi! My name is Priya and I'm planning a trip to Lisbon.",
        "Which city did I say I was visiting?",
    ):
        reply = await conversation.say(text)
        sys.stdout.write(f"{reply.output}\n")
    sys.stdout.write("streaming: ")
    async for delta in conversation.stream("And what is my name?"):
        sys.stdout.write(delta)
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    asyncio.run(demo())
