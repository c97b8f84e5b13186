"""Transports: the user's environment as it is, and the same with one thing switched
off, narrowed or taken out."""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Union

from nccl_runbook.core.facts import Gap, Unusable
from nccl_runbook.core.facts_world import World, WorldRequest
from nccl_runbook.launch.engine import LOGGED, Engine
from nccl_runbook.launch.warm_link import EngineError
from nccl_runbook.worlds import ask as worlds
from nccl_runbook.worlds.ask import SPENT, STALL_FIRST_S, STALL_S, budget, on_gpus
from nccl_runbook.worlds.ask_pairs import CPU_SIZES, GPU_SIZES, OPS, clean_passes
from nccl_runbook.worlds.facts import Arm, Arms, Guilty, Trial

GPU_DEADLINE_S, CPU_DEADLINE_S = 40.0, 20.0
# with a budget from here on, the later arms are run beside a control that passes
# too: about 4 s each on 4 H200
DEEP_S = 240.0
SET_ALREADY = "not tested, because your environment already has this setting in every test"
INFINIBAND = Path("/sys/class/infiniband")
STEERS = re.compile(r"(NCCL|TORCH|CUDA|FI|UCX|LD|GLOO)_\w+")  # may steer NCCL or a library below it
# only select GPUs or packages, or builds, or switch multicast off: an arm switches nothing on
STAYS = (
    "CUDA_VISIBLE_DEVICES",
    "(NCCL|CUDA)_VERSION",
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NCCL_RUNBOOK_\\w+",
    "CUDA_(HOME|PATH)",
    "TORCH_CUDA_ARCH_LIST",
    *LOGGED,
)
# arm -> what it sets, what it has to reduce in the control, and, for a later arm, what another arm
# has to do before ("": none); later ones only with DEEP_S or where the control fails. The first are narrowed
# by the later ones, which cost less bandwidth. "P2P off fails": at once beside a control that passes; beside
# a failing control only if that arm fails too, since sockets show no more (9.7 s, H200).
ARMS = {
    "P2P off": ({"NCCL_P2P_DISABLE": "1"}, ["P2P"], None),
    "P2P and SHM off": ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ["P2P", "SHM"], "P2P off fails"),
    "P2P, SHM and IB off": (
        {f"NCCL_{x}_DISABLE": "1" for x in ("P2P", "SHM", "IB")},
        ["P2P", "SHM", "NET/IB"],
        "P2P and SHM off fails",
    ),
    "SHM off": ({"NCCL_SHM_DISABLE": "1"}, ["SHM"], None),
    "cuMem off": ({"NCCL_CUMEM_ENABLE": "0"}, ["P2P/CUMEM"], None),
    "cuMem host off": ({"NCCL_CUMEM_HOST_ENABLE": "0"}, ["SHM"], "SHM off passes"),
    "NVLS off": ({"NCCL_NVLS_ENABLE": "0"}, ["algo NVLS"], None),
    "IB off": ({"NCCL_IB_DISABLE": "1"}, ["NET/IB"], None),
    "GDR off": ({"NCCL_NET_GDR_LEVEL": "LOC"}, ["NET/IB/GDRDMA"], "IB off passes"),
    "interface pinned": ({"NCCL_SOCKET_IFNAME": "lo"}, [], None),
    "P2P over NVLink only": ({"NCCL_P2P_LEVEL": "NVL"}, ["P2P"], "P2P off passes"),
    "P2P below one PCIe switch": ({"NCCL_P2P_LEVEL": "PIX"}, ["P2P"], "P2P over NVLink only passes"),
    "P2P below one host bridge": ({"NCCL_P2P_LEVEL": "PHB"}, ["P2P"], "P2P below one PCIe switch passes"),
    "ring only": ({"NCCL_ALGO": "Ring"}, ["algo TREE", "algo NVLS", "algo PAT", "algo COLLNET"], ""),
    "simple protocol only": ({"NCCL_PROTO": "Simple"}, ["proto LL"], ""),
}
CPU_ARMS = {"interface pinned": ({"GLOO_SOCKET_IFNAME": "lo"}, [], None)}
TESTS = ("control", *ARMS, "clean", "control again")


def request(
    name: str, devices: List[Optional[int]], env: Mapping[str, Optional[str]], timed: bool, stall_s: float
) -> WorldRequest:
    """The world of one arm: ``env`` changes the environment; ``timed`` worlds run with nothing else beside
    them."""
    gpu = on_gpus(devices)
    logged = {"NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,TUNING"} if gpu else {}
    return worlds.request(
        name,
        devices,
        {**logged, **env},
        OPS,
        GPU_DEADLINE_S if gpu else CPU_DEADLINE_S,
        timed,
        stall_s,
        GPU_SIZES if gpu else CPU_SIZES,
    )


def steering(environ: Mapping[str, str]) -> Dict[str, str]:
    """Variables of this environment that the arm *clean* removes."""
    return {
        k: v
        for k, v in sorted(environ.items())
        if STEERS.fullmatch(k) and not any(re.fullmatch(stays, k) for stays in STAYS)
    }


@dataclasses.dataclass(eq=False)
class _Session:
    """One round of arms: the engine, the ranks, and what time is left. ``deep``: whether there is time for
    the later arms beside a control that passes."""

    engine: Engine
    devices: List[Optional[int]]
    spent: Callable[[], bool]
    deep: bool
    stall_s: float = STALL_FIRST_S

    def worlds(
        self, named: Mapping[str, Mapping[str, Optional[str]]], timed: bool = True
    ) -> Dict[str, World]:
        """One world for each environment, in turn, as far as the budget goes."""
        requests = [request(name, self.devices, env, timed, self.stall_s) for name, env in named.items()]
        return dict(zip(named, self.engine.run_in_turn(requests, self.spent)))

    def control(self) -> Trial:
        first = self.engine.run_in_turn([request("control", self.devices, {}, True, self.stall_s)])[0]
        self.stall_s = STALL_S
        return Trial(
            "control",
            first,
            None if first.passed else self.worlds({"control": {}}, timed=False).get("control"),
        )


def _cannot_act(name: str, control: Trial) -> Optional[Gap]:
    """Why this arm would show nothing here, None if it may."""
    env, acts_on, _ = ARMS.get(name) or CPU_ARMS[name]
    met = {} if isinstance(control.world.transports, Gap) else control.world.transports
    used = {**met, **control.world.algorithms}
    # so far that NCCL's log shows all it uses
    connected = any(e["size_bytes"] for r in control.world.ranks for e in r.named("op"))
    over_ib = name == "GDR off" or "NCCL_IB_DISABLE" in env
    if all(os.environ.get(k) == v for k, v in env.items()):
        return Gap("unsupported", SET_ALREADY)
    if over_ib and not (INFINIBAND.is_dir() and any(INFINIBAND.iterdir())):
        return Gap("absent", "no InfiniBand or RoCE device on this machine")
    if name == "interface pinned" and met and not any("NET" in key for key in met):
        return Gap(
            "unsupported",
            "no effect on this machine: the ranks connect without this setting, and no channel of NCCL "
            "uses the network",
        )
    if used and acts_on and connected and not any(key.startswith(tuple(acts_on)) for key in used):
        what = " or ".join(a.split()[-1] for a in acts_on)
        return Gap("unsupported", f"not tested, because NCCL does not use {what} on this machine")
    return None


def check_only(name: str) -> None:
    """ValueError if ``name`` is neither empty nor one of the tests that may run alone beside the control."""
    if name and name not in TESTS:
        raise Unusable(f"only: there is no test {name!r}. The tests are {', '.join(TESTS)}")


def collect(
    engine: Engine,
    devices: List[Optional[int]],
    budget_s: float,
    halve: Callable[..., Any],
    only: str = "",
) -> Union[Arms, Gap]:
    """The control, every arm that can act, the control again, and *clean* if the environment may be at
    fault. With one rank no arm is run, and a Gap is returned if the control passes. ``budget_s``: seconds;
    ``halve``: search.halving.halve, which finds the guilty variables; ``only``: run this arm alone beside the
    control. ValueError if there is none of that name."""
    check_only(only)
    gpu, alone = on_gpus(devices), len(devices) < 2
    session = _Session(engine, devices, budget(budget_s, gpu), budget_s >= DEEP_S)
    control, named = session.control(), {} if alone else ARMS if gpu else CPU_ARMS
    if alone and control.passed:
        return Gap("unsupported", "there is one GPU, but a transport test needs two ranks")
    left_out = {
        name: _cannot_act(name, control)
        if only in ("", name)
        else Gap("not-run", f"only {only} was asked for")
        for name in named
    }
    trials: Dict[str, Union[Trial, Gap]] = {
        **{n: gap for n, gap in left_out.items() if gap is not None},
        **_trials(
            session,
            {
                n: env
                for n, (env, _, before) in named.items()
                if left_out[n] is None
                and (before is None or n == only or (control.passed and before == "P2P off fails"))
            },
            control,
        ),
    }
    after = session.worlds({"control again": {}}, timed=control.passed).get("control again")
    ended = Gap("not-run", SPENT) if after is None else Trial("control again", after)
    arms = _environment(session, Arms("nccl" if gpu else "gloo", control, [], ended), halve)
    for name, (env, _, before) in named.items():
        if name not in trials:
            why_not = _why_not_later(session, arms, before, trials)
            trials[name] = _trials(session, {name: env}, control)[name] if why_not is None else why_not
    return dataclasses.replace(
        arms, arms=[Arm(n, env, acts_on, trials[n]) for n, (env, acts_on, _) in named.items()]
    )


def _why_not_later(
    session: _Session, arms: Arms, before: str, trials: Mapping[str, Union[Trial, Gap]]
) -> Optional[Gap]:
    """Why an arm that narrows another one is not run; None if it is run."""
    wider = trials.get(before.rpartition(" ")[0])
    passed = arms.control.passed
    fits = (isinstance(wider, Trial) and wider.passed) == before.endswith("passes") and getattr(
        wider, "reason", ""
    ) != "not-run"
    if passed and not session.deep:
        return Gap(
            "not-run",
            "runs only if the test with the unchanged environment fails, or if budget_s is at least "
            f"{DEEP_S:g}",
        )
    if not passed and clean_passes(arms):
        return Gap("not-run", "not needed, because a variable of your environment makes the difference")
    return None if passed or not before or fits else Gap("not-run", f"runs only if the test {before}")


def _trials(
    session: _Session, envs: Dict[str, Dict[str, str]], control: Trial
) -> Dict[str, Union[Trial, Gap]]:
    """Beside a passing control every arm is timed and failures are repeated. Beside a failing one arms are
    only checked, and those that pass are repeated and timed: they may serve as a workaround."""
    first = session.worlds(envs, timed=control.passed)
    more = session.worlds({n: envs[n] for n, world in first.items() if world.passed != control.passed})
    both = {
        n: (more[n], world) if not control.passed and n in more else (world, more.get(n))
        for n, world in first.items()
    }
    return {
        **dict.fromkeys(envs, Gap("not-run", SPENT)),
        **{n: Trial(n, timed, None if timed.passed else other) for n, (timed, other) in both.items()},
    }


def _environment(session: _Session, arms: Arms, halve: Callable[..., Any]) -> Arms:
    """*clean*, where the control fails or NCCL's own variables are set; and which variable the difference
    hangs on."""
    variables, control = steering(os.environ), arms.control
    if not variables or (control.passed and not any(k.startswith(("NCCL_", "GLOO_")) for k in variables)):
        return dataclasses.replace(arms, clean=Gap("not-run", "no variable of your environment affects NCCL"))

    def without(names: Iterable[str], name: str) -> Union[World, Gap]:
        try:
            return session.worlds({name: dict.fromkeys(names)}, timed=control.passed or name == "clean").get(
                name
            ) or Gap("not-run", SPENT)
        except EngineError as error:
            return Gap(
                "failed", f"the interpreter does not start without the variables of your environment: {error}"
            )

    clean = without(variables, "clean")
    # the driver may be found through it only
    if "LD_LIBRARY_PATH" in variables and (isinstance(clean, Gap) or not clean.passed):
        del variables["LD_LIBRARY_PATH"]
        clean = without(variables, "clean") if variables else clean
    # which may be chance
    first, once = clean, not control.passed and isinstance(clean, World) and clean.passed
    clean = without(variables, "clean") if once else first
    trial = (
        clean
        if isinstance(clean, Gap)
        else Trial("clean", clean, first if once and not clean.passed else None)
    )
    limit = None if isinstance(clean, Gap) else _speed_limit(control.world, clean)
    arms = dataclasses.replace(arms, clean=Arm("clean", dict.fromkeys(variables), [], trial))
    if isinstance(clean, Gap) or not clean.passed or (control.passed and limit is None):
        return arms

    def shows(kept: Any) -> Optional[bool]:
        world = without([v for v in variables if v not in kept], f"only with {', '.join(kept)}")
        if isinstance(world, Gap):
            return None
        return not world.passed if limit is None else (world.busbw_gb_per_s("all_reduce") or 0.0) < limit

    halved = halve(list(variables), shows)
    why_not = (
        "cut off by the time budget" if halved.why_not == "unclear" and session.spent() else halved.why_not
    )
    return dataclasses.replace(
        arms, guilty=Guilty({v: variables[v] for v in halved.guilty}, len(variables), halved.asked, why_not)
    )


def _speed_limit(control: World, clean: World) -> Optional[float]:
    """GB/s, the geometric mean of the two bandwidths, if clean is clearly faster; None if speed shows
    nothing."""
    slow, fast = control.busbw_gb_per_s("all_reduce"), clean.busbw_gb_per_s("all_reduce")
    return (slow * fast) ** 0.5 if control.passed and slow and fast and fast > 1.5 * slow else None
