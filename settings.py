"""One frozen settings model, read from the environment (`PERDURE_*`)."""

import argparse
import difflib
import os
import re
import reprlib
from collections.abc import Iterable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from stores.records import EffectPolicy

PREFIX = "PERDURE_"

QueueName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]

OTHER_VARIABLES = frozenset(
    {
        *("CHAOS_AT_ONCE", "CHAOS_JOBS", "CHAOS_ONLY", "CHAOS_POINTS", "CHAOS_RANDOM"),
        *("CHAOS_CONVERSATION", "CHAOS_RESUME", "CHAOS_SEED", "CHAOS_SELF_TEST"),
        *("CODEC_ORIGINS", "CODEC_TOKEN", "DEMO_EFFECTS_FILE", "DEMO_PAUSE_SECONDS", "DRY_RUN"),
        *("HARNESS_URI", "JSON", "LOCAL_MODEL", "MONGOD", "MONGODB_PORT", "RECORD", "TEMPORAL_CLI"),
        *("TEMPORAL_PORT", "UI", "WORKSPACE"),
    }
)
"""`PERDURE_<NAME>` variables that are read elsewhere: options of commands, binaries, the demo."""

_OF_TESTS = ("BENCHMARK_", "TEST_")

_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP)(_.+)?)?)$")
"""What Kubernetes sets in each container for a service whose name begins with `perdure`."""


class InvalidSettingsError(Exception):
    """A `PERDURE_` variable has a value that does not fit, or is one that nothing reads."""


class Settings(BaseSettings):
    """Every setting of worker and command line: an environment variable `PERDURE_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="PERDURE_", frozen=True, extra="ignore")

    temporal_address: str | None = Field(default=None, description="host:port of Temporal")
    temporal_namespace: str = Field(default="default", description="namespace; it must exist")
    mongodb_uri: str | None = Field(default=None, description="connection string of a replica set")
    mongodb_database: str = Field(default="perdure", description="database name")
    temporal_tls: bool = Field(
        default=False, description="TLS to Temporal; a certificate or an API key turns it on, too"
    )
    temporal_tls_ca: Path | None = Field(
        default=None, description="file with the authorities that may sign Temporal's certificate"
    )
    temporal_tls_cert: Path | None = Field(
        default=None, description="file with the client's certificate, for mutual TLS"
    )
    temporal_tls_key: Path | None = Field(
        default=None, description="file with the client's private key"
    )
    temporal_tls_server_name: str | None = Field(
        default=None, description="name in Temporal's certificate, where the address is another"
    )
    temporal_api_key: str | None = Field(
        default=None, repr=False, description="API key for Temporal"
    )
    task_queue: QueueName = Field(
        default="perdure", description="task queue of workers and submits"
    )
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
    hop_to_newest_build: bool = Field(
        default=True, description="likewise, when new runs of its deployment go to another build"
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
    role: Literal["all", "workflows", "activities"] = Field(
        default="all",
        description="what a worker does: `workflows` with their commits, `activities` (tools and "
        "models), or both",
    )
    routes: dict[str, QueueName] = Field(
        default={},
        description="JSON object of task queues for activities: `agent:NAME` or `tool:NAME` to the "
        "queue where other workers wait for them",
    )
    processes: int = Field(default=1, ge=1, le=64, description="worker processes on this machine")
    deployment: str | None = Field(
        default=None,
        pattern=r"^[^.:]+$",
        description="name of the worker deployment; set, each run stays on the build that began it",
    )
    build_id: str = Field(
        default="perdure",
        pattern=r"^[^:]+$",
        description="build of this worker; unset, the SDK would hash every loaded module at start",
    )
    max_cached_workflows: int = Field(default=1000, ge=0, description="workflow cache entries")
    max_concurrent_workflow_tasks: int = Field(default=100, ge=2, description="workflow task slots")
    max_concurrent_activities: int = Field(default=100, ge=1, description="activity slots")
    max_concurrent_local_activities: int = Field(
        default=100, ge=1, description="slots of commits that run beside their workflow task"
    )
    tuner: Literal["fixed", "resource"] = Field(
        default="fixed",
        description="`resource`: as many slots as memory and processors allow, up to those above",
    )
    target_memory: float = Field(
        default=0.8, gt=0, lt=1, description="share of memory that the resource tuner fills"
    )
    target_cpu: float = Field(
        default=0.9, gt=0, le=1, description="share of the processors that the resource tuner fills"
    )
    max_pollers: int = Field(
        default=5, ge=2, description="requests for tasks that wait at once, of each kind"
    )
    poller_autoscaling: bool = Field(
        default=False, description="open and close pollers with the load, up to the most of them"
    )
    max_activities_per_second: float | None = Field(
        default=None, gt=0, description="activities that this worker begins a second"
    )
    max_queue_activities_per_second: float | None = Field(
        default=None,
        gt=0,
        description="activities that all workers of its task queue begin a second",
    )
    graceful_shutdown_seconds: float = Field(
        default=30, ge=0, description="how long activities may finish after SIGTERM"
    )
    health_host: str = Field(default="0.0.0.0", description="address of the health port")  # noqa: S104 - probes come from outside
    health_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="port of `/healthz`, `/readyz` and `/metrics`; further processes take the next "
        "ones; unset, none",
    )
    metrics_store_seconds: float = Field(
        default=30,
        ge=0,
        description="between two reads of unresolved effects and index lag for metrics; 0, never",
    )
    telemetry_content: bool = Field(
        default=False, description="put content of messages and words of errors into spans and logs"
    )
    log_format: Literal["text", "json"] = Field(default="text", description="of a worker's logs")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="the least that a worker logs"
    )
    priority: int | None = Field(
        default=None, ge=1, le=5, description="of submitted runs, 1 first; unset, Temporal's 3"
    )
    fairness_weights: dict[str, float] = Field(
        default={},
        description="JSON object of workspaces whose runs get more, or less, than an equal share "
        "of busy workers: id to weight",
    )
    payload_storage: bool = Field(
        default=True, description="keep large payloads in MongoDB instead of in Temporal's history"
    )
    payload_threshold_bytes: int = Field(
        default=16384, ge=1024, le=262144, description="from this size on a payload is large"
    )
    payload_cache_bytes: int = Field(
        default=16777216, ge=0, description="of stored payloads in the memory of each process"
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
    api_host: str = Field(default="127.0.0.1", description="address of `perdure api`")
    api_port: int = Field(default=17280, ge=0, le=65535, description="its port; 0: any free one")
    api_jwt_issuer: str | None = Field(
        default=None, description="`iss` of JWTs that the API takes beside its own tokens"
    )
    api_jwt_audience: str | None = Field(default=None, description="`aud` of those JWTs")
    api_jwt_keys: str | None = Field(
        default=None,
        description="their public keys: an `https://` address of a JWKS, or `file:PEM`",
    )
    model: str | None = Field(
        default=None, description="pydantic-ai model of the bundled assistant, such as openai:gpt-5"
    )
    cost_limit: Decimal | None = Field(
        default=None,
        gt=0,
        description="US dollars of a turn that agent `conversation` or `perdure chat` begins",
    )

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for key in self.routes:
            if not re.fullmatch(r"(agent|tool):.+", key):
                message = f"PERDURE_ROUTES: {key!r} is neither `agent:NAME` nor `tool:NAME`"
                raise ValueError(message)
        if (self.temporal_tls_cert is None) != (self.temporal_tls_key is None):
            message = "set both PERDURE_TEMPORAL_TLS_CERT and PERDURE_TEMPORAL_TLS_KEY, or neither"
            raise ValueError(message)
        return self

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


def check_variables(names: Iterable[str]) -> None:
    """Return when each `PERDURE_` variable among `names` is one that something reads.

    Raises:
        InvalidSettingsError: one is not; the message names it and the nearest that is.
    """
    known = {*(name.upper() for name in Settings.model_fields), *OTHER_VARIABLES}
    given = [name for name in sorted(names) if name.startswith(PREFIX)]
    services = tuple(
        name.removesuffix("SERVICE_HOST") for name in given if name.endswith("_SERVICE_HOST")
    )
    problems: list[str] = []
    for name in given:
        rest = name.removeprefix(PREFIX)
        if rest in known or rest.startswith(_OF_TESTS):
            continue
        if services and name.startswith(services) and _OF_KUBERNETES.search(name):
            continue
        nearest = difflib.get_close_matches(rest, known, n=1)
        advice = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "see docs/settings.md"
        problems.append(f"{name} is set and is no setting; {advice}")
    if problems:
        raise InvalidSettingsError("; ".join(problems))


def load_settings() -> Settings:
    """The settings of this process's environment.

    Raises:
        InvalidSettingsError: a variable is unknown or does not fit; the message names each.
    """
    check_variables(os.environ)
    try:
        return Settings()
    except ValidationError as error:
        raise InvalidSettingsError("; ".join(_misfits(error))) from error
    except SettingsError as error:  # no JSON where JSON belongs; its cause quotes the value
        field = re.search(r'field "(\w+)"', str(error))
        name = f"{PREFIX}{field[1].upper()}" if field else "a PERDURE_ variable"
        message = f"{name}: it is no JSON; see docs/settings.md"
        raise InvalidSettingsError(message) from error


def _misfits(error: ValidationError) -> Iterable[str]:
    for each in error.errors():
        words = each["msg"].removeprefix("Value error, ")
        if not each["loc"]:  # a check of several variables says which
            yield words
            continue
        name = str(each["loc"][0])
        field = Settings.model_fields.get(name)
        path = ".".join(str(step) for step in each["loc"][1:])
        found = f" (found {reprlib.repr(each['input'])})" if field and field.repr else ""
        yield f"{PREFIX}{name.upper()}{path and f' at {path}'}: {words}{found}"


def option_parser(program: str) -> argparse.ArgumentParser:
    """An option for each setting; what is given goes by the name of its variable."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Runs workflows and activities until SIGTERM. Each option is a variable, too.",
    )
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        default = "" if field.default in (None, "") else f"; default {field.default}"
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            dest=variable,
            metavar="VALUE",
            help=f"{field.description} ({variable}{default})".replace("%", "%%"),
        )
    return parser
