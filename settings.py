"""One frozen settings model, read from the environment (`PERDURE_*`)."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from stores.records import EffectPolicy


class Settings(BaseSettings):
    """Every setting of worker and command line: an environment variable `PERDURE_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="PERDURE_", frozen=True, extra="ignore")

    temporal_address: str | None = Field(default=None, description="host:port of Temporal")
    temporal_namespace: str = Field(default="default", description="namespace; it must exist")
    mongodb_uri: str | None = Field(default=None, description="connection string of a replica set")
    mongodb_database: str = Field(default="perdure", description="database name")
    task_queue: str = Field(default="perdure", description="task queue of workers and submits")
    agents: str = Field(default="", description="comma-separated module:attribute of agents")
    data_dir: Path = Field(default=Path(".perdure"), description="data of `perdure dev`")
    boundary_mode: Literal["local", "regular"] = Field(
        default="local", description="how commits run: local activities, or regular ones"
    )
    tool_effects: dict[str, EffectPolicy] = Field(
        default={},
        description="JSON object of tools one cannot edit: each `read`, `idempotent` or `once`",
    )
    max_snapshots_per_run: int | None = Field(
        default=None, ge=1, description="snapshots that a run keeps; unset, all of them"
    )
    hop_after_events: int = Field(
        default=8000,
        ge=100,
        description="a run goes on in a fresh execution when its history has this many events",
    )
    hop_after_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=64 * 1024,
        description="likewise, when its history has this size in bytes",
    )
    hop_after_updates: int = Field(
        default=1000, ge=1, description="likewise, when it has accepted this many updates"
    )
    hop_after_requests: int | None = Field(
        default=None,
        ge=1,
        description="likewise, when it has made this many model requests; unset, they do not count",
    )
    stream_hours: float = Field(
        default=24, gt=0, description="how long live text of runs that stream is kept"
    )
    media: str = Field(
        default="mongodb",
        description="where large content of messages goes: `mongodb`, `disk:PATH`, "
        "`s3://BUCKET/PREFIX`, or `none`: it stays in the messages",
    )
    media_threshold_bytes: int = Field(
        default=65536, ge=1, description="content of this size and above goes there"
    )
    build_id: str = Field(
        default="perdure",
        min_length=1,
        description="build of this worker; unset, the SDK would hash every loaded module at start",
    )
    max_cached_workflows: int = Field(default=1000, ge=0, description="workflow cache entries")
    max_concurrent_workflow_tasks: int = Field(default=100, ge=2, description="workflow task slots")
    max_concurrent_activities: int = Field(default=100, ge=1, description="activity slots")
    graceful_shutdown_seconds: float = Field(
        default=30, ge=0, description="how long activities may finish after SIGTERM"
    )
    payload_storage: bool = Field(
        default=True, description="keep large payloads in MongoDB instead of in Temporal's history"
    )
    payload_threshold_bytes: int = Field(
        default=16384, ge=1024, le=262144, description="from this size on a payload is large"
    )
    payload_cache_bytes: int = Field(
        default=67108864, ge=0, description="of stored payloads in the memory of each process"
    )
    payload_keys: dict[str, str] = Field(
        default={},
        repr=False,
        description="JSON object of keys that encrypt payloads: id to 32 bytes in base64, or to "
        "`file:` and a path",
    )
    payload_key: str | None = Field(
        default=None, description="id of the key to encrypt with; unset, nothing is encrypted"
    )
    payload_workspace_keys: dict[str, str] = Field(
        default={}, description="JSON object of workspaces with a key of their own: id to key id"
    )
    retention: str = Field(
        default="",
        description="what is kept of ended runs: JSON object of policies by workspace, or `file:` "
        "and a path",
    )
    redact_env: str = Field(
        default="",
        description="comma-separated names of environment variables whose values are never stored",
    )
    redact_patterns: list[str] = Field(
        default=[], description="JSON list of regular expressions; what one matches is not stored"
    )
    redactor: str | None = Field(
        default=None, description="module:function that masks a text, after these two"
    )
    allow_plain_payloads: bool = Field(
        default=False, description="let a worker that redacts run without encrypted payloads"
    )
    model: str | None = Field(
        default=None, description="pydantic-ai model of the bundled assistant, such as openai:gpt-5"
    )
    cost_limit: Decimal | None = Field(
        default=None, gt=0, description="US dollars of one turn of the plain agent `conversation`"
    )

    @property
    def graceful_shutdown(self) -> timedelta:
        """The grace period after SIGTERM."""
        return timedelta(seconds=self.graceful_shutdown_seconds)

    @property
    def stream_lifetime(self) -> timedelta:
        """How long live text is kept."""
        return timedelta(hours=self.stream_hours)

    @property
    def stores_payloads(self) -> bool:
        """Whether large payloads are stored beside the history."""
        return self.payload_storage and self.mongodb_uri is not None

    @property
    def redacted_variables(self) -> tuple[str, ...]:
        """`redact_env` as a tuple of names."""
        return tuple(name.strip() for name in self.redact_env.split(",") if name.strip())

    @property
    def redacts(self) -> bool:
        """Whether anything is masked in the store."""
        return bool(self.redacted_variables or self.redact_patterns or self.redactor)

    @property
    def agent_paths(self) -> tuple[str, ...]:
        """`agents` as a tuple of `module:attribute`."""
        return tuple(path.strip() for path in self.agents.split(",") if path.strip())
