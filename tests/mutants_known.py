"""What `make mutants` runs, and the survivors that no test can tell from the original."""

# the tests of a room, or of one file of it
TESTS = {
    "against": ["test_triage_against"],
    "causes": ["test_rules_worlds"],
    "environment": ["test_rules_environment"],
    "gpus": ["test_gpu_visibility", "test_gpu_health"],
    "hang/live": ["test_rules_live", "test_live_hosts"],
    "hang": ["test_hang"],
    "sync": ["test_rules_sync"],
    "triage": ["test_triage", "test_triage_clues", "test_triage_messages", "test_triage_told"],
    "machine": ["test_busy"],
    "worlds": ["test_rules_worlds", "test_search"],
    "worlds/judge_arms.py": ["test_transport_decision"],
    "worlds/judge_control.py": ["test_rules_transports_environment", "test_transport_decision"],
    "worlds/judge_culprits.py": ["test_narrowest"],
}
# 15 that a review of 2026-11-24 named, and six others of the files it read
JUDGES = [
    "gpus/judge_cuda.py:cuda_misses_gpus",
    "causes/failed_world.py:explain",
    "machine/guard.py:in_the_way",
    "hang/live/faults/judge_missing.py:_elsewhere",
    "hang/judge_accused.py:silent",
    "gpus/judge_health.py:bus_ids_collide",
    "worlds/judge.py:_search",
    "gpus/judge.py:gpus_hidden",
    "gpus/judge_health.py:_HAS",
    "environment/judge_settings.py:contradictions",
    "worlds/judge_arms.py:_by_arms",
    "hang/live/faults/judge_slow.py:slow_by_gpus",
    "worlds/judge_culprits.py:narrowed",
    "against/judge.py:_communicators",
    "hang/live/faults/judge_slow.py:gpu_stuck",
    "machine/judge_busy.py:gpus_busy",
    "worlds/judge_control.py:outcome",
    "triage/ranks/judge_gpus.py:first_gpu_is_held",
    "environment/libraries/judge_libraries.py:two_libraries",
    "sync/judge_failures.py:of_one",
    "hang/live/judge_hosts.py:missing_ranks",
]
EQUIVALENT = {}
