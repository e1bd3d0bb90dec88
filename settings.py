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
    def agent_paths(self) -> tuple[str, ...]:
        """`agents` as a tuple of `module:attribute`."""
        return tuple(path.strip() for path in self.agents.split(",") if path.strip())
