"""How chunks of payloads are compressed: by zlib, with a text that it knows beforehand.

A chunk of 10 KB has a kilobyte of field names around what was said, and the end of a model request,
new in each, is nothing else. With a dictionary of them zlib writes a tenth of that.
"""

import zlib

LEVEL = 6
"""A step has some ten thousand new bytes, which take half a millisecond, in a thread."""

_USUAL_NAMES = (
    '{"url":"https://","force_download":false,"vendor_metadata":null,"kind":"image-url",'
    '"media_type":"image/png","identifier":"","kind":"document-url","kind":"binary"},'
    '"part_kind":"retry-prompt"},"part_kind":"file"},{"content":"","id":null,"signature":"",'
    '"provider_name":"","provider_details":null,"part_kind":"thinking"},{"content":"","id":null,'
    '"provider_name":null,"provider_details":null,"citations":null,"part_kind":"text"},'
    '":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null,"description":"","title":"",'
    '":{"items":{"type":"string"},"type":"array"},"":{"type":"boolean"},"":{"type":"number"},'
    '"model_settings":null,"model_request_parameters":{"function_tools":[{"name":"","'
    'parameters_json_schema":{"additionalProperties":false,"properties":{"":{"type":"string"},"'
    '":{"type":"integer"}},"required":[""],"type":"object"},"description":".",'
    '"outer_typed_dict_key":null,"strict":null,"sequential":false,"kind":"function",'
    '"metadata":{"effect":"read"},"timeout":null,"defer_loading":false,"unless_native":null,'
    '"with_native":null,"tool_kind":null,"unless_tool_kind":null,'
    '"return_schema":{"type":"string"},"include_return_schema":null,"toolset_id":"<agent>",'
    '"capability_id":null}],"native_tools":[],"_telemetry_mcp_url_ids":[],'
    '"_telemetry_mcp_url_toolset_ids":[],"_telemetry_mcp_url_tool_names":[],'
    '"tool_visibility":null,"revealed_tool_names":[],"introduced_tool_names":[],'
    '"deferred_capability_ids":[],"output_mode":"text","output_object":null,"output_tools":[],'
    '"prompted_output_template":null,"allow_text_output":true,"allow_image_output":false,'
    '"instruction_parts":null,"instruction_visibility":null,"thinking":null,"cache":null},'
    '"telemetry_mcp_url_ids":[],"telemetry_mcp_url_toolset_ids":[],'
    '"telemetry_mcp_url_tool_names":[],"serialized_run_context":{"run_id":"",'
    '"conversation_id":"","metadata":null,"retries":{},"tool_call_id":null,"tool_name":null,'
    '"tool_call_approved":false,"tool_call_metadata":null,"retry":0,"max_retries":1,'
    '"run_step":1,"partial_output":false,"trace_include_content":false,'
    '"instrumentation_version":5,"usage":{"input_tokens":1,"cache_write_tokens":0,'
    '"cache_write_1h_tokens":0,"cache_read_tokens":0,"output_tokens":1,'
    '"output_reasoning_tokens":0,"input_audio_tokens":0,"cache_audio_read_tokens":0,'
    '"output_audio_tokens":0,"audio_seconds":0.0,"details":{},"cost":null,"requests":1,'
    '"tool_calls":1},"usage_limits":{"cost_limit":null,"request_limit":null,'
    '"tool_calls_limit":null,"input_tokens_limit":null,"output_tokens_limit":null,'
    '"total_tokens_limit":null,"per_request_input_tokens_limit":null,'
    '"count_tokens_before_request":false},"deadline":null,"loaded_capability_ids":[],'
    '"discovered_tool_names":[],"_anchored_evidence":{"discovered_tool_names":[],'
    '"loaded_capability_ids":[]},"available_tool_names":["final_result"],'
    '"_tool_names_by_kind":{},"active_capability_ids":["process_history",'
    '"<pending_message_drain_capability:","step_persistence","tool_search",'
    '"<stable_temporal_durability:"],"_deferred_capability_ids":[],"capability_active":true},'
    '"model_id":null}\n\x16\n\x08encoding\x12\njson/plain'
    '{"messages":[{"parts":[{"content":"","timestamp":"202Z","dynamic_ref":null,'
    '"scope":"conversation","metadata":null,"part_kind":"system-prompt"},'
    '{"content":"","timestamp":"202Z","part_kind":"user-prompt"}],'
    '"timestamp":"202Z","instructions":null,"kind":"request","run_id":"","conversation_id":"",'
    '"metadata":null,"state":"complete"},{"parts":[{"tool_name":"","args":{"":"","'
    '"args":"{\\"","tool_call_id":"call_","tool_call_id":"toolu_","tool_kind":null,"id":null,'
    '"provider_name":null,"provider_details":null,"part_kind":"tool-call"}],'
    '"usage":{"input_tokens":1,"cache_write_tokens":0,"cache_write_1h_tokens":0,'
    '"cache_read_tokens":0,"output_tokens":1,"output_reasoning_tokens":0,'
    '"input_audio_tokens":0,"cache_audio_read_tokens":0,"output_audio_tokens":0,'
    '"audio_seconds":0.0,"details":{},"cost":null},"model_name":"gpt-claude-gemini-function:",'
    '"timestamp":"202Z","kind":"response","provider_name":null,"provider_url":null,'
    '"provider_details":null,"provider_response_id":null,"finish_reason":"stop",'
    '"finish_reason":"tool_call","finish_reason":null,"run_id":"","conversation_id":"",'
    '"metadata":null,"workspace_ref":null,"history_digest":null,"failed_attempts":null,'
    '"state":"complete"},{"parts":[{"tool_name":"","content":"'
    '\\n    \\n","tool_call_id":"","tool_kind":null,"metadata":null,"timestamp":"202Z",'
    '"outcome":"success","retry":null,"part_kind":"tool-return"},{"tool_name":"'
)

DICTIONARY = _USUAL_NAMES.encode()
"""Of the JSON of pydantic-ai's messages and model requests, what is met most often last. It never
changes: stored chunks name it by its checksum and cannot be read without it. A better one would be
another one, used for what is written from then on."""


def compressed(body: bytes) -> bytes:
    """The content of a chunk, for `decompressed`: the shorter of two ways.

    Where matches of less than six characters are left alone (`Z_FILTERED`), texts full of ids take
    an eighth less, prose and source text 3 % more.
    """
    return min(_squeezed(body, zlib.Z_DEFAULT_STRATEGY), _squeezed(body, zlib.Z_FILTERED), key=len)


def _squeezed(body: bytes, strategy: int) -> bytes:
    squeeze = zlib.compressobj(LEVEL, strategy=strategy, zdict=DICTIONARY)
    return squeeze.compress(body) + squeeze.flush()


def decompressed(data: bytes) -> bytes:
    """What `compressed` was given, now or before there was a dictionary.

    Raises:
        zlib.error: it is something else, or not all of it, or names another dictionary.
    """
    unfold = zlib.decompressobj(zdict=DICTIONARY)
    body = unfold.decompress(data)
    if not unfold.eof:
        message = "the end of the compressed data is missing"
        raise zlib.error(message)
    return body
