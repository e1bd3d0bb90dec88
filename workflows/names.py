"""Names that reach a workflow's history or the server. Frozen: a test compares a literal list."""

from temporalio.common import SearchAttributeKey

TASK_QUEUE = "perdure"
"""Default task queue of workers and submitters."""

AGENT_RUN = "agent_run"
"""Workflow type of one agent run."""

STATUS_QUERY = "status"
UNRESOLVED_TOOL_EFFECTS_QUERY = "unresolved_tool_effects"

LINEAGE_HEADER = "perdure-lineage"
"""Header of activities and child workflows; see `workflows.lineage.Lineage`."""
RESOLVE_UPDATE = "resolve_tool_effect"
APPROVE_UPDATE = "decide_approval"

EFFECT_POLICIES_PATCH = "effect-policies"
"""Runs that began before it retry tools that declare nothing, and park no call."""

APPROVALS_PATCH = "approvals"
"""Runs that met an approval before it ended with it, and wait for none."""

RESULTS_PATCH = "results-in-workflow"
"""Marked where a result of a tool in the workflow is refused. Runs that met one before ended with
their record open, or in no task."""

CONVERSATION = "conversation"
"""Workflow type of a conversation."""

RETENTION = "retention"
"""Workflow type of a retention that a schedule starts."""

SAY_UPDATE = "say"
STEER_UPDATE = "steer"
REGENERATE_UPDATE = "regenerate"
SELECT_VARIANT_UPDATE = "select_variant"
HIDE_UPDATE = "hide"
CONCEAL_UPDATE = "conceal"
RENAME_UPDATE = "rename"
ARCHIVE_UPDATE = "archive"
FORK_UPDATE = "fork"
CANCEL_TURN_UPDATE = "cancel"
CLOSE_UPDATE = "close"

STEER_SIGNAL = "steer"
"""Of `agent_run`: text for the run in progress."""

STEP_PERSISTENCE = "step_persistence"
"""Capability id."""

CONVERSATION_SEARCH = "conversation_search"
"""Capability id."""

SEARCH_TOOLSET = "conversation-search"
SEARCH_ACTIVITY = "search_conversation_history"

SESSION_HISTORY = "session_history"
"""Capability id."""

SESSION_TOOLSET = "session-history"
SESSION_SEARCH_ACTIVITY = "session_search"
SESSION_READ_ACTIVITY = "session_read"

AGENT_ATTRIBUTE = SearchAttributeKey.for_keyword("PerdureAgent")
CONVERSATION_ATTRIBUTE = SearchAttributeKey.for_keyword("PerdureConversation")
PARENT_ATTRIBUTE = SearchAttributeKey.for_keyword("PerdureParent")
STATE_ATTRIBUTE = SearchAttributeKey.for_keyword("PerdureState")

SEARCH_ATTRIBUTES = (AGENT_ATTRIBUTE, CONVERSATION_ATTRIBUTE, PARENT_ATTRIBUTE, STATE_ATTRIBUTE)
"""What `perdure init` registers. Optional: where one is missing, runs set none."""
