"""All workflow classes of a worker, in one tuple."""

from workflows.agent_run import AgentRunWorkflow
from workflows.conversation import ConversationWorkflow

WORKFLOWS = (AgentRunWorkflow, ConversationWorkflow)
"""What `worker.py` and the replayer register."""
