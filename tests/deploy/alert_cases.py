"""For each alert, series that raise it: by series, promtool's words for values of each minute."""

STEADY = "1x60"
GROWING = "0+60x60"

RAISING: dict[str, dict[str, str]] = {
    "PerdureNoWorkers": {},
    "PerdureWorkerNotReady": {'perdure_worker_ready{instance="a"}': "0x60"},
    "PerdurePollersGone": {'perdure_worker_live{instance="a"}': "0x60"},
    "PerdureSlotsFull": {
        'temporal_worker_task_slots_available{job="perdure",worker_type="ActivityWorker"}': "0x60",
        'temporal_worker_task_slots_used{job="perdure",worker_type="ActivityWorker"}': "100x60",
    },
    "PerdureTasksWait": {
        'temporal_activity_schedule_to_start_latency_seconds_bucket{le="10.0"}': "0x60",
        'temporal_activity_schedule_to_start_latency_seconds_bucket{le="30.0"}': GROWING,
        'temporal_activity_schedule_to_start_latency_seconds_bucket{le="+Inf"}': GROWING,
    },
    "PerdureWorkflowTasksFail": {
        'temporal_workflow_task_execution_failed_total{failure_reason="NonDeterminism"}': GROWING
    },
    "PerdureCacheThrashes": {
        'temporal_sticky_cache_miss_total{instance="a"}': "0+100x60",
        'temporal_sticky_cache_hit_total{instance="a"}': "0+100x60",
    },
    "PerdureStoreDown": {
        'perdure_boundary_duration_seconds_count{outcome="StoreUnavailableError"}': GROWING,
        'perdure_boundary_duration_seconds_count{outcome="apply"}': "0x60",
    },
    "PerdureCommitsSlow": {
        'perdure_boundary_duration_seconds_bucket{outcome="apply",le="1.0"}': "0x60",
        'perdure_boundary_duration_seconds_bucket{outcome="apply",le="2.5"}': GROWING,
        'perdure_boundary_duration_seconds_bucket{outcome="apply",le="+Inf"}': GROWING,
    },
    "PerdureConflict": {"perdure_commit_conflicts_total": "0x50 1x10"},
    "PerdureCommitsRefused": {'perdure_commit_refused_total{error="E"}': "0x50 1x10"},
    "PerdureStaleWrites": {"perdure_commit_stale_total": GROWING},
    "PerdureStoreNotRead": {"perdure_store_read_failures_total": "0+1x60"},
    "PerdureCallsParked": {"perdure_effects_parked": STEADY},
    "PerdureCallUnresolvedLong": {"perdure_effects_unresolved_age_seconds": "90000x60"},
    "PerdureHistoryNearLimit": {
        'perdure_history_event_headroom_bucket{le="5000.0",workflow_type="mine"}': GROWING
    },
    "PerdureSearchBehind": {"perdure_search_lag_age_seconds": "700x60"},
}

QUIET: dict[str, str] = {
    'up{job="perdure"}': STEADY,
    'perdure_worker_ready{instance="a"}': STEADY,
    'perdure_worker_live{instance="a"}': STEADY,
    'temporal_worker_task_slots_available{job="perdure",worker_type="ActivityWorker"}': "100x60",
    'temporal_worker_task_slots_used{job="perdure",worker_type="ActivityWorker"}': "0x60",
    'temporal_activity_schedule_to_start_latency_seconds_bucket{le="10.0"}': GROWING,
    'temporal_activity_schedule_to_start_latency_seconds_bucket{le="+Inf"}': GROWING,
    'temporal_sticky_cache_miss_total{instance="a"}': "0+1x60",
    'temporal_sticky_cache_hit_total{instance="a"}': "0+100x60",
    'perdure_boundary_duration_seconds_count{outcome="apply"}': GROWING,
    'perdure_boundary_duration_seconds_bucket{outcome="apply",le="1.0"}': GROWING,
    'perdure_boundary_duration_seconds_bucket{outcome="apply",le="+Inf"}': GROWING,
    "perdure_commit_conflicts_total": "0x60",
    "perdure_commit_stale_total": "0x30 1x30",
    "perdure_effects_parked": "0x60",
    "perdure_effects_unresolved_age_seconds": "5x60",
    'perdure_history_event_headroom_bucket{le="5000.0",workflow_type="agent_run"}': "0x60",
    "perdure_search_lag_age_seconds": "0x60",
}
"""A healthy hour: raises none."""
