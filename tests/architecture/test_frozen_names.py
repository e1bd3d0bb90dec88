"""Names and models that reach a workflow's history, against literal lists.

A name here is never changed. A field may be added, with a default; none is renamed, removed or made
required, because histories hold the older form.
"""

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio import workflow
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities import (
    boundaries,
    conversations,
    history,
    naming,
    reconciling,
    searching,
    sessions,
)
from activities.boundaries import BoundaryActivities
from activities.conversations import ConversationActivities
from activities.history import HistoryActivities
from activities.naming import NamingActivities
from activities.reconciling import ReconcileActivities
from activities.retaining import RetentionActivities
from activities.searching import SearchActivities
from activities.sessions import SessionActivities
from agents.assistant import agent as assistant
from agents.conversation.agent import chat_agent
from agents.orders import agent as orders
from agents.scripted import agent as scripted
from converter import DATA_CONVERTER
from sandbox import workflow_runner
from stores import operations, rebuilding
from stores.conversation_rows import turn_run_id
from stores.memory import InMemoryStepStore
from stores.reading.reader import Library
from stores.reading.task_keys import CALL_METADATA, delegate_run_id
from stores.search.rendering import TOOL_NAME
from workflows import (
    agent_run_models,
    approvals,
    conversation_models,
    deps,
    hops,
    lineage,
    names,
    parking,
    recording,
    session_history,
    steering,
    turn_input,
)
from workflows.agents import find_reconcile
from workflows.conversation_models import conversation_workflow_id
from workflows.delegates import child_run_id, delegate
from workflows.registry import WORKFLOWS


async def _retain_nothing(_: object) -> dict[str, dict[str, int]]:
    return {}


def activity_name(function: Any) -> str:
    definition = getattr(function, "__temporal_activity_definition")
    return str(definition.name)


def test_workflow_names() -> None:
    definitions = [workflow._Definition.must_from_class(each) for each in WORKFLOWS]
    assert [each.name for each in definitions] == ["agent_run", "conversation", "retention"]
    assert [sorted(str(name) for name in each.queries) for each in definitions] == [
        ["status", "unresolved_tool_effects"],
        ["status"],
        [],
    ]
    assert [sorted(map(str, each.signals)) for each in definitions] == [["steer"], [], []]
    assert [sorted(map(str, each.updates)) for each in definitions] == [
        [],
        [
            "archive",
            "cancel",
            "close",
            "conceal",
            "fork",
            "hide",
            "regenerate",
            "rename",
            "say",
            "select_variant",
            "steer",
        ],
        [],
    ]


@pytest.mark.spec("SP-17")
def test_activity_names() -> None:
    store = InMemoryStepStore()
    loading = HistoryActivities(store)
    reconciling_tools = ReconcileActivities(find_reconcile)
    reading = SessionActivities(Library(store=store))
    registered = [
        *BoundaryActivities(store).activities,
        loading.load_history,
        loading.load_usage,
        loading.load_snapshot,
        reconciling_tools.reconcile_tool_effect,
        SearchActivities(store).search_conversation_history,
        reading.session_search,
        reading.session_read,
        *ConversationActivities(store).activities,
        NamingActivities(store).name_conversation,
        RetentionActivities(_retain_nothing).apply_retention,
    ]
    assert [activity_name(each) for each in registered] == [
        "registration_identity",
        "register_run",
        "append_event",
        "save_snapshot",
        "start_tool_effect",
        "finish_tool_effect",
        "commit_boundaries",
        "load_history",
        "load_usage",
        "load_snapshot",
        "reconcile_tool_effect",
        "search_conversation_history",
        "session_search",
        "session_read",
        "open_conversation",
        "admit_message",
        "begin_turn",
        "finish_turn",
        "change_conversation",
        "fork_conversation",
        "await_run",
        "read_conversation",
        "name_conversation",
        "apply_retention",
    ]


def test_other_names() -> None:
    assert [key.name for key in names.SEARCH_ATTRIBUTES] == [
        "PerdureAgent",
        "PerdureConversation",
        "PerdureParent",
        "PerdureState",
    ]
    assert names.RETENTION == "retention"
    assert names.TASK_QUEUE == "perdure"
    assert names.STEP_PERSISTENCE == "step_persistence"
    assert names.CONVERSATION_SEARCH == "conversation_search"
    assert names.SEARCH_TOOLSET == "conversation-search"
    assert names.SEARCH_ACTIVITY == TOOL_NAME == "search_conversation_history"
    assert names.SESSION_HISTORY == "session_history"
    assert names.SESSION_TOOLSET == "session-history"
    assert names.SESSION_SEARCH_ACTIVITY == session_history.SEARCH_TOOL == "session_search"
    assert names.SESSION_READ_ACTIVITY == session_history.READ_TOOL == "session_read"
    assert names.LINEAGE_HEADER == "perdure-lineage"
    assert names.RESOLVE_UPDATE == "resolve_tool_effect"
    assert names.APPROVE_UPDATE == "decide_approval"
    assert names.EFFECT_POLICIES_PATCH == "effect-policies"
    assert names.APPROVALS_PATCH == "approvals"
    assert names.RESULTS_PATCH == "results-in-workflow"
    assert (rebuilding.TURN_METADATA, rebuilding.PATH_METADATA) == ("turn", "turn_path")
    bundled = (scripted.name, assistant.name, orders.name, chat_agent.name)
    assert bundled == ("scripted", "assistant", "orders", "conversation")


def test_names_of_delegates() -> None:
    """Tool calls in histories hold the tool's name, and starts of children the child's id."""
    assert delegate("a b", description="").name == "ask_a_b"
    assert child_run_id("parent", 7, 2, 1) == "delegate-c701b4a33c3071d4c9f5a1c3543d2201"
    assert CALL_METADATA == "delegated_by"
    assert delegate_run_id("parent", "2/0", activity_index=0, order=1) == (
        "053815dd7188865edca424804c030546f11d7fd82b181a1dbf38560d0b29133c"
    )


def test_ids_of_conversations_and_their_turns() -> None:
    assert conversation_workflow_id("a", "b:c") == "conversation:1:a:b:c"
    assert conversation_workflow_id("a:b", "c") == "conversation:3:a:b:c"
    long = conversation_workflow_id("\U0001f600" * 200, "\U0001f600" * 200)
    assert long == (
        "conversation:sha256:c627df648d0e63525c35e517782e01a00be7394424513123c39b26ad5306c30c"
    )
    assert turn_run_id("default", "c", "m", 1) == (
        "turn-5d49da070c011062fdff7abb733801f05b588364cf7f6a106dcb115d4b3fb4a3"
    )


HEADER = ["execution_id", "history_length", "number", "queued_at", "workspace_id"]
HEADER_REQUIRED = ["execution_id", "history_length", "number", "queued_at"]

FIELDS: dict[type[BaseModel], tuple[list[str], list[str]]] = {
    # model: (all fields that were ever released, those that are required)
    boundaries.RegistrationIdentityRequest: (
        ["registration_id", "run_id"],
        ["registration_id", "run_id"],
    ),
    boundaries.RegistrationIdentityResult: (
        [
            "boundary_mode",
            "hop_bounds",
            "registration_id",
            "routes",
            "search_attributes",
            "tool_effects",
        ],
        ["registration_id"],
    ),
    boundaries.HopBounds: (
        ["events", "newest_build", "requests", "size_bytes", "updates"],
        ["events", "size_bytes", "updates"],
    ),
    boundaries.CommitBoundariesRequest: (
        [*HEADER, "operations"],
        [*HEADER_REQUIRED, "operations"],
    ),
    **{
        model: ([*HEADER, "operation"], [*HEADER_REQUIRED, "operation"])
        for model in (
            boundaries.RegisterRunRequest,
            boundaries.AppendEventRequest,
            boundaries.SaveSnapshotRequest,
            boundaries.StartToolEffectRequest,
            boundaries.FinishToolEffectRequest,
        )
    },
    boundaries.CommitBoundariesResult: (
        ["digest", "number", "outcomes", "spans", "verdict"],
        ["digest", "number", "verdict"],
    ),
    boundaries.BoundarySpan: (["first", "last", "run_id"], ["first", "last", "run_id"]),
    boundaries.BoundaryOutcome: (
        ["disposition", "error", "error_type", "index"],
        ["disposition", "index"],
    ),
    history.LoadHistoryRequest: (
        [
            "accept_unresolved",
            "at_snapshot",
            "at_step",
            "include_interrupted",
            "run_id",
            "workspace_id",
        ],
        ["run_id"],
    ),
    history.LoadHistoryResult: (
        ["conversation_id", "messages", "snapshot_sequence", "state"],
        ["messages"],
    ),
    history.LoadSnapshotRequest: (
        ["key", "run_id", "sequence", "workspace_id"],
        ["key", "run_id", "sequence"],
    ),
    history.LoadSnapshotResult: (["messages"], ["messages"]),
    history.LoadUsageRequest: (["run_id", "workspace_id"], ["run_id"]),
    history.LoadUsageResult: (["usage"], []),
    sessions.SessionSearchRequest: (["parameters", "principal", "workspace_id"], []),
    sessions.SessionReadRequest: (
        ["parameters", "principal", "session_id", "workspace_id"],
        ["session_id"],
    ),
    sessions.SessionResult: (["text"], ["text"]),
    searching.SearchHistoryRequest: (
        [
            "analyzer",
            "bm25_b",
            "bm25_k1",
            "context_lines",
            "conversation_id",
            "excludes_own_calls",
            "max_matches",
            "query",
            "run_id",
            "scope",
            "workspace_id",
        ],
        ["query"],
    ),
    searching.SearchHistoryResult: (
        ["matches", "messages", "note", "runs", "skipped", "text"],
        ["text"],
    ),
    searching.SearchHistoryMatch: (
        ["conversation_id", "index", "run_id", "score"],
        ["index", "run_id", "score"],
    ),
    operations.RegisterRun: (
        [
            "agent_name",
            "continued_from",
            "conversation_id",
            "forked_from",
            "from_snapshot",
            "kind",
            "metadata",
            "parent_run_id",
            "principal",
            "registration_id",
            "run_id",
            "sequence",
            "started_at",
        ],
        ["registration_id", "run_id"],
    ),
    operations.AppendEvent: (
        [
            "at",
            "call_index",
            "context",
            "error",
            "error_type",
            "event",
            "key",
            "kind",
            "run_id",
            "run_state",
            "sequence",
            "step_index",
            "tool_call_id",
            "tool_name",
            "usage",
        ],
        ["event", "key", "run_id", "step_index"],
    ),
    operations.SaveSnapshot: (
        [
            "at",
            "context",
            "entries",
            "key",
            "kind",
            "ranges",
            "run_id",
            "sequence",
            "state",
            "step_index",
        ],
        ["key", "ranges", "run_id", "state", "step_index"],
    ),
    operations.StartToolEffect: (
        [
            "arguments",
            "at",
            "call_index",
            "effect",
            "effect_summary",
            "idempotency_key",
            "kind",
            "run_id",
            "sequence",
            "step_index",
            "tool_call_id",
            "tool_name",
        ],
        ["run_id", "tool_call_id", "tool_name"],
    ),
    operations.FinishToolEffect: (
        [
            "at",
            "call_index",
            "effect_summary",
            "error",
            "error_type",
            "idempotency_key",
            "kind",
            "ordinal",
            "resolution",
            "run_id",
            "sequence",
            "status",
            "step_index",
            "tool_call_id",
            "tool_name",
        ],
        ["run_id", "status", "tool_call_id", "tool_name"],
    ),
    lineage.Lineage: (
        [
            "activity_index",
            "branch",
            "call_index",
            "conversation_id",
            "effect",
            "parent_run_id",
            "request",
            "request_part",
            "round",
            "run_id",
            "step_index",
            "tool_call_id",
            "tool_name",
            "workspace_id",
        ],
        [],
    ),
    reconciling.ReconcileRequest: (
        ["agent_name", "arguments", "effect_key", "run_id", "tool_call_id", "tool_name"],
        ["agent_name", "arguments", "effect_key", "run_id", "tool_call_id", "tool_name"],
    ),
    reconciling.ReconcileResult: (["finding", "result"], ["finding"]),
    parking.ResolveToolEffectRequest: (
        ["by", "call", "decision", "error", "result", "run_id", "why", "workspace_id"],
        ["call", "decision", "run_id"],
    ),
    parking.ResolveToolEffectResult: (
        ["call_index", "decision", "run_id", "step_index", "tool_call_id", "tool_name"],
        ["call_index", "decision", "run_id", "step_index", "tool_call_id", "tool_name"],
    ),
    approvals.DecideApprovalRequest: (
        [
            *("arguments_digest", "by", "call", "decision", "message", "run_id", "why"),
            "workspace_id",
        ],
        ["arguments_digest", "call", "decision", "run_id"],
    ),
    approvals.DecideApprovalResult: (
        ["call_index", "decision", "run_id", "step_index", "tool_call_id", "tool_name"],
        ["call_index", "decision", "run_id", "step_index", "tool_call_id", "tool_name"],
    ),
    operations.PositionedMessage: (["message", "position"], ["message", "position"]),
    conversations.ConversationBeginning: (
        ["agent", "kind", "max_tokens", "max_turns", "principal", "settings"],
        ["agent"],
    ),
    conversations.OpenConversationRequest: (
        ["begin", "conversation_id", "workspace_id"],
        ["conversation_id"],
    ),
    conversations.AnswerHandle: (
        [
            "asked_at",
            "message_id",
            "number",
            "order",
            "position",
            "principal",
            "run_id",
            "status",
            "turn_public_id",
            "variant_public_id",
        ],
        [
            "asked_at",
            "message_id",
            "number",
            "order",
            "position",
            "run_id",
            "turn_public_id",
            "variant_public_id",
        ],
    ),
    conversations.OpenConversationResult: (
        ["agent", "next_order", "queue", "settings"],
        ["agent", "next_order", "settings"],
    ),
    conversations.AdmitMessageRequest: (
        [
            "conversation_id",
            "intent",
            "message_id",
            "number",
            "position",
            "principal",
            "text",
            "workspace_id",
        ],
        ["conversation_id", "message_id", "text"],
    ),
    conversations.AdmitMessageResult: (["answer", "is_new"], []),
    conversations.BeginTurnRequest: (
        ["conversation_id", "max_tokens", "max_turns", "number", "position", "workspace_id"],
        ["conversation_id", "max_turns", "number", "position"],
    ),
    conversations.BeginTurnResult: (["messages", "path_revision", "prompt"], ["prompt"]),
    conversations.FinishTurnRequest: (
        ["conversation_id", "error", "number", "position", "run_id", "status", "workspace_id"],
        ["conversation_id", "number", "position", "run_id", "status"],
    ),
    conversations.FinishTurnResult: (["status"], ["status"]),
    conversations.ChangeConversationRequest: (
        [
            "change",
            "conversation_id",
            "is_on",
            "number",
            "position",
            "subtitle",
            "tags",
            "title",
            "workspace_id",
        ],
        ["change", "conversation_id"],
    ),
    conversations.ForkConversationRequest: (
        ["at_position", "conversation_id", "into", "workspace_id"],
        ["at_position", "conversation_id", "into"],
    ),
    conversations.ConversationChanged: (
        ["conversation_id", "revision"],
        ["conversation_id", "revision"],
    ),
    conversations.AwaitRunRequest: (["run_id"], ["run_id"]),
    conversations.AwaitRunResult: (["error", "status"], ["status"]),
    conversations.ReadConversationResult: (
        ["agent", "messages", "public_id", "title", "turn_count"],
        ["agent", "public_id", "title", "turn_count"],
    ),
    conversations.ReadConversationRequest: (
        ["conversation_id", "workspace_id"],
        ["conversation_id"],
    ),
    conversation_models.ConversationSettings: (
        [
            "agent",
            "deps",
            "idle_seconds",
            "kind",
            "max_tokens",
            "max_turns",
            "mid_turn",
            "model",
            "model_settings",
            "namer_model",
            "names_itself",
            "queue_limit",
            "recycle_turns",
            "recycle_updates",
            "usage_limits",
        ],
        ["agent"],
    ),
    conversation_models.ConversationInput: (
        ["conversation_id", "principal", "settings", "workspace_id"],
        ["conversation_id"],
    ),
    conversation_models.SayRequest: (["message_id", "principal", "text"], ["message_id", "text"]),
    conversation_models.RegenerateRequest: (
        ["message_id", "position", "principal"],
        ["message_id", "position"],
    ),
    conversation_models.SelectVariantRequest: (["number", "position"], ["number", "position"]),
    conversation_models.VisibilityRequest: (["is_on", "position"], ["position"]),
    conversation_models.RenameRequest: (["subtitle", "tags", "title"], ["title"]),
    conversation_models.ArchiveRequest: (["is_on"], []),
    conversation_models.ForkRequest: (["at_position", "into"], ["at_position", "into"]),
    conversation_models.Ticket: (
        ["answer", "conversation_id", "is_new", "is_steer", "workspace_id"],
        ["answer", "conversation_id", "is_new", "workspace_id"],
    ),
    conversation_models.TurnCancelled: (["run_id"], ["run_id"]),
    conversation_models.ConversationStatus: (
        ["agent", "carried", "queued", "running", "turns", "updates"],
        ["agent", "carried", "queued", "running", "turns", "updates"],
    ),
    steering.Steer: (["message_id", "text"], ["message_id", "text"]),
    turn_input.TurnPlace: (
        ["max_tokens", "max_turns", "number", "position"],
        ["number", "position"],
    ),
    naming.NameConversationRequest: (
        ["conversation_id", "model", "workspace_id"],
        ["conversation_id"],
    ),
    naming.NameConversationResult: (["is_named"], ["is_named"]),
    agent_run_models.AgentRunInput: (
        [
            "accept_unresolved",
            "agent",
            "at_snapshot",
            "at_step",
            "continue_from",
            "conversation_id",
            "delegation_depth",
            "deps",
            "fork_from",
            "hop",
            "include_interrupted",
            "metadata",
            "model",
            "model_settings",
            "parent_run_id",
            "principal",
            "prompt",
            "stream",
            "turn",
            "usage_limits",
            "workspace_id",
        ],
        ["agent"],
    ),
    hops.HopState: (
        [
            "count",
            "output_retries",
            "recording",
            "refused_tools",
            "registration_id",
            "tool_retries",
            "usage",
        ],
        ["count", "recording", "registration_id"],
    ),
    recording.RecordingState: (
        [
            "next_position",
            "next_sequence",
            "ordinals",
            "ranges",
            "saves",
            "snapshot_key",
            "snapshot_sequence",
            "step_index",
        ],
        [
            "next_position",
            "next_sequence",
            "ranges",
            "saves",
            "snapshot_key",
            "snapshot_sequence",
            "step_index",
        ],
    ),
    deps.DepsReference: (["agent", "digest"], ["agent", "digest"]),
    agent_run_models.AgentRunOutput: (
        ["conversation_id", "message_count", "output", "run_id", "undelivered_steers", "usage"],
        ["conversation_id", "message_count", "output", "run_id", "usage"],
    ),
    agent_run_models.AgentRunStatus: (["agent", "run_id", "state"], ["agent", "run_id", "state"]),
    agent_run_models.UnresolvedToolEffect: (
        ["call_index", "step_index", "tool_call_id", "tool_name"],
        ["call_index", "step_index", "tool_call_id", "tool_name"],
    ),
}


@pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)
def test_fields_of_models_in_histories(model: type[BaseModel]) -> None:
    released, required = FIELDS[model]
    fields = model.model_fields
    assert set(released) <= set(fields), "a field of a released model is gone"
    assert sorted(name for name, field in fields.items() if field.is_required()) == sorted(required)


@pytest.mark.parametrize("workflow_class", WORKFLOWS)
async def test_workflows_load_under_the_strict_sandbox(workflow_class: type) -> None:
    restricted = plugin_runner(workflow_runner(DATA_CONVERTER))
    restricted.prepare_workflow(workflow._Definition.must_from_class(workflow_class))


def plugin_runner(runner: SandboxedWorkflowRunner) -> SandboxedWorkflowRunner:
    """The runner as pydantic-ai's plugin completes it when a worker is made."""
    config = PydanticAIPlugin().configure_worker({"workflow_runner": runner})
    completed = dict(config)["workflow_runner"]
    assert isinstance(completed, SandboxedWorkflowRunner)
    return completed
