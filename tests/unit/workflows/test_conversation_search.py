"""The capability in plain runs: what it tells the model, and what its tool finds."""

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import PrefixTools, ProcessHistory
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stores.memory import InMemoryStepStore
from stores.records import RunRecord
from stores.search.source import SnapshotHistorySource
from tests.helpers.script import follow, script
from tests.stores.records import run_record
from workflows.agents import AgentSetupError, register_agents
from workflows.conversation_search import ConversationSearch, ConversationSearchToolset
from workflows.durable import durable
from workflows.persistence import StepPersistence

TOOL = "search_conversation_history"


def searching(query: str, **arguments: Any) -> str:
    """A prompt that makes the agent search, and then stop."""
    return script([[(TOOL, {"query": query, **arguments})]])


def agent_with(*capabilities: Any, name: str = "finder") -> Agent[None, str]:
    return Agent(FunctionModel(follow), name=name, capabilities=list(capabilities))


def found(messages: Sequence[ModelMessage]) -> str:
    """What the newest search answered."""
    returns = [
        part
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart) and part.tool_name.endswith(TOOL)
    ]
    return str(returns[-1].content)


class TestTool:
    @pytest.mark.spec("CS-1", "CS-3", "CS-5", "CS-6", "CS-45")
    async def test_it_finds_past_runs_and_earlier_steps_of_its_own(self) -> None:
        for order in (1, -1):
            store = InMemoryStepStore()
            capabilities: list[Any] = [
                StepPersistence(store=store),
                ConversationSearch(SnapshotHistorySource(store), scope="conversation"),
            ]
            agent = agent_with(*capabilities[::order])
            await agent.run(script([], final="the password is swordfish"), conversation_id="talk")
            steps = [[(TOOL, {"query": "swordfish"})], [(TOOL, {"query": "earlier step"})]]
            result = await agent.run(script(steps, final="earlier"), conversation_id="talk")
            texts = [
                str(part.content)
                for message in result.all_messages()
                for part in message.parts
                if isinstance(part, ToolReturnPart)
            ]
            assert "Assistant: the password is swordfish" in texts[0]
            assert result.run_id
            assert f"run: {result.run_id} | conversation: talk" in texts[1]
            apart = await agent.run(searching("swordfish"))
            assert "password" not in found(apart.all_messages())

    @pytest.mark.spec("CS-44", "CS-47")
    async def test_the_conversation_is_the_runs_own_whatever_the_model_says(self) -> None:
        agent = agent_with(StepPersistence(), ConversationSearch())
        secret = script([], final="secret of alice")
        await agent.run(secret, conversation_id="alice:chat-1", message_history=None)
        threaded = await agent.run(script([], final="first"), conversation_id="bob:chat-1")
        asked = searching("secret", run_id="alice:chat-1")
        result = await agent.run(asked, message_history=threaded.all_messages())
        assert result.conversation_id == "bob:chat-1"
        assert found(result.all_messages()) == "No persisted history for run 'alice:chat-1'."
        schema = ConversationSearchToolset[None]().tools[TOOL].function_schema.json_schema
        assert sorted(schema["properties"]) == ["query", "run_id"]

    async def test_a_search_does_not_find_itself_unless_it_is_told_to(self) -> None:
        for excludes in (True, False):
            search = ConversationSearch[None](excludes_own_calls=excludes, context_lines=0)
            agent = agent_with(StepPersistence(), search)
            call = (TOOL, {"query": "zebra"})
            result = await agent.run(script([[call], [call]]), conversation_id="talk")
            # The script in the prompt holds the word; the first call and its answer do, too.
            assert ("Found 1 match" in found(result.all_messages())) is excludes

    @pytest.mark.spec("CS-10", "CS-11")
    async def test_a_source_of_ones_own_takes_the_stores_place(self) -> None:
        class Log:
            async def list_runs(self) -> list[RunRecord]:
                return [
                    run_record("logged", conversation_id="talk"),
                    run_record("unlabelled", conversation_id=None),
                ]

            async def run_history(self, *, run_id: str) -> list[ModelMessage]:
                return [ModelRequest(parts=[UserPromptPart(f"platypus {run_id}")])]

        agent = agent_with(ConversationSearch(Log()))
        result = await agent.run(searching("platypus"), conversation_id="talk")
        assert "platypus logged" in found(result.all_messages())
        assert "unlabelled" not in found(result.all_messages())

    @pytest.mark.spec("CS-46")
    async def test_a_run_without_a_conversation_is_told_why_it_finds_nothing(self) -> None:
        context = cast("Any", type("Context", (), {"conversation_id": None, "agent": None})())
        store = InMemoryStepStore()
        toolset = ConversationSearchToolset[None](SnapshotHistorySource(store))
        answer = await toolset.search_conversation_history(context, "anything")
        assert "this run has none" in answer

    async def test_nothing_to_search_is_an_error_that_says_what_to_add(self) -> None:
        with pytest.raises(UserError, match="add StepPersistence"):
            await agent_with(ConversationSearch()).run(searching("x"))


class TestCompaction:
    @pytest.mark.spec("CS-7", "CS-4", "CS-58")
    async def test_what_slid_out_of_a_window_of_forty_messages_is_found(self) -> None:
        def window(messages: list[ModelMessage]) -> list[ModelMessage]:
            return messages if len(messages) <= 40 else messages[-40 + len(messages) % 2 :]

        agent = agent_with(StepPersistence(), ConversationSearch(), ProcessHistory(window))
        history: list[ModelMessage] = []
        for number in range(25):
            final = "see docs/needle.md" if number == 2 else f"answer {number}"
            result = await agent.run(
                script([], final=final), message_history=history, conversation_id="talk"
            )
            history = window(result.all_messages())
        assert "needle" not in str(history)
        result = await agent.run(
            searching("docs/needle.md"), message_history=history, conversation_id="talk"
        )
        assert "Assistant: see docs/needle.md" in found(result.all_messages())
        assert "in 50 persisted messages of 25 run(s)" in found(result.all_messages())

    async def test_what_a_compaction_took_out_within_a_run_is_found_and_its_summary_is_not(
        self,
    ) -> None:
        def compact(messages: list[ModelMessage]) -> list[ModelMessage]:
            if len(messages) < 8:
                return messages
            mark = {"pydantic-ai-harness.compaction.summary.v1": True}
            summary = CompactionPart("they spoke of a xylophone", metadata=mark)
            prompt = cast("list[Any]", messages[0].parts)
            return [ModelRequest(parts=[summary, *prompt]), *messages[-3:]]

        def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
            seen = str(messages)
            if "xylophone" not in seen:
                done = sum(isinstance(each, ModelResponse) for each in messages)
                return ModelResponse(parts=[ToolCallPart("note", {"text": f"needle-{done}.py"})])
            if "Found" not in seen and "No matches" not in seen:
                queries = ("needle-0.py", "xylophone")
                return ModelResponse(parts=[ToolCallPart(TOOL, {"query": q}) for q in queries])
            return ModelResponse(parts=[TextPart("done")])

        agent: Agent[None, str] = Agent(
            FunctionModel(model),
            capabilities=[StepPersistence(), ConversationSearch(), ProcessHistory(compact)],
        )

        @agent.tool_plain
        def note(text: str) -> str:
            return f"noted {text}"

        result = await agent.run("go", conversation_id="talk")
        answers = [
            str(part.content)
            for message in result.all_messages()
            for part in message.parts
            if isinstance(part, ToolReturnPart) and part.tool_name == TOOL
        ]
        assert "noted needle-0.py" in answers[0]
        assert answers[1].startswith("No matches for 'xylophone'")


class TestSurface:
    @pytest.mark.spec("CS-42", "CS-49", "CS-50", "CS-51", "CS-52", "CS-53", "CS-56")
    async def test_it_tells_the_model_what_it_reaches(self) -> None:
        default = ConversationSearch[None]()
        assert (default.id, default.tool_id) == ("conversation_search", "conversation-search")
        assert (default.scope, default.effective_scope) == (None, "conversation")
        everything = ConversationSearch[None](scope="all")
        assert everything.effective_scope == "all"
        assert "runs in the same conversation." in str(default.get_instructions())
        assert "runs persisted in the same store." in str(everything.get_instructions())
        assert ConversationSearch[None](add_instructions=False).get_instructions() is None
        toolset, wide = default.get_toolset(), everything.get_toolset()
        assert isinstance(toolset, ConversationSearchToolset)
        assert isinstance(wide, ConversationSearchToolset)
        assert toolset.id == "conversation-search"
        note = "covers only the current conversation"
        assert note in str(toolset.tools[TOOL].description)
        assert note not in str(wide.tools[TOOL].description)
        deferred = ConversationSearch[None](SnapshotHistorySource(InMemoryStepStore()))
        deferred.defer_loading = True
        await agent_with(deferred).run(script([]))

    @pytest.mark.spec("CS-54", "CS-55")
    async def test_two_are_one_or_apart_on_purpose(self) -> None:
        source = SnapshotHistorySource(InMemoryStepStore())
        agent = agent_with(ConversationSearch(source), ConversationSearch(source))
        await agent.run(script([]))
        with pytest.raises(UserError, match="differ in scope"):
            agent_with(ConversationSearch(source), ConversationSearch(source, scope="all"))
        both = agent_with(
            StepPersistence(store=cast("Any", source.store)),
            *(
                PrefixTools(
                    wrapped=ConversationSearch(source, scope=scope, id=name, tool_id=name),
                    prefix=name,
                )
                for name, scope in cast("Any", (("near", "conversation"), ("far", "all")))
            ),
        )
        await both.run(script([], final="walrus"), conversation_id="one")
        near = await both.run(script([[(f"near_{TOOL}", {"query": "walrus"})]]))
        assert "Assistant: walrus" not in found(near.all_messages())
        far = await both.run(script([[(f"far_{TOOL}", {"query": "walrus"})]]))
        assert "Assistant: walrus" in found(far.all_messages())

    @pytest.mark.spec("CS-23", "CS-24", "CS-27", "CS-28")
    @pytest.mark.parametrize(
        "option",
        [
            {"max_matches": -1},
            {"context_lines": -1},
            {"bm25_k1": -0.5},
            {"bm25_k1": float("nan")},
            {"bm25_b": 1.5},
            {"analyzer": "icu"},
            {"scope": "galaxy"},
        ],
        ids=str,
    )
    def test_options_out_of_range_are_refused_when_it_is_made(self, option: Any) -> None:
        with pytest.raises(ValueError, match=next(iter(option))):
            ConversationSearch[None](**option)

    @pytest.mark.spec("CS-9")
    def test_a_store_that_cannot_be_read_is_a_type_error_at_once(self) -> None:
        with pytest.raises(TypeError, match="list_runs and list_snapshots"):
            SnapshotHistorySource(cast("Any", object()))

    def test_a_worker_refuses_a_search_with_a_source_of_its_own(self) -> None:
        source = SnapshotHistorySource(InMemoryStepStore())
        agent = agent_with(*durable(ConversationSearch(source)), name="own")
        with pytest.raises(AgentSetupError, match="leave source out"):
            register_agents([agent])

    @pytest.mark.spec("CS-57")
    async def test_it_makes_no_spans_of_its_own(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: PLC0415
            InMemorySpanExporter,
        )
        from pydantic_ai.capabilities import Instrumentation  # noqa: PLC0415
        from pydantic_ai.models.instrumented import InstrumentationSettings  # noqa: PLC0415

        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for shows, count in ((True, 1), (False, 0)):
            exporter.clear()
            settings = InstrumentationSettings(tracer_provider=provider, include_content=shows)
            agent = agent_with(
                StepPersistence(), ConversationSearch(), Instrumentation(settings=settings)
            )
            await agent.run(searching("ocelot"))
            spans = exporter.get_finished_spans()
            (tool,) = [each for each in spans if TOOL in each.name]
            assert len([each for each in spans if "search" in each.name]) == 1
            assert json.dumps(dict(tool.attributes or {}), default=str).count("ocelot") >= count
            assert ("ocelot" in str(dict(tool.attributes or {}))) is shows
