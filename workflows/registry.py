"""All workflow classes of a worker, in one tuple."""

from workflows.agent_run import AgentRunWorkflow

WORKFLOWS = (AgentRunWorkflow,)
"""What `worker.py` and the replayer register."""
