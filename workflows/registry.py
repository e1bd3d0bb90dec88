"""All workflow classes of a worker, in one tuple."""

from workflows.agent_run import AgentRunWorkflow
from workflows.conversation import ConversationWorkflow
from workflows.retention import RetentionWorkflow

WORKFLOWS = (AgentRunWorkflow, ConversationWorkflow, RetentionWorkflow)
"""What `worker.py` and the replayer register."""
