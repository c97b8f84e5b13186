"""The ways that weights travel, one function each: ``way(sync, clock)``; those by file are in sync_disk.py.
Stands beside weight_sync.py, which starts and checks them.

A way may use of ``sync``: ``rank`` (0 is the trainer) and ``size``; the tensors by index: ``names``,
``shapes``, ``sizes`` in bytes, ``views``, their bytes on this rank, and ``own(i, whole)``, this rank's
part of a whole tensor; ``buckets``, lists of indices; ``staged``, whether tensors pass through the
buffers of ``stage``; ``data``, the process group; ``wire`` and ``side``, two streams, None on a CPU.
Of ``clock``: ``with clock.host(PHASE)`` for work of the host, ``with clock.queued(PHASE, STREAM)`` for
work queued on a GPU, ``notice(PHASE)`` and ``wait()``, which wait for that work. PHASE is one of
sync_clock.PHASES.

Every way of NCCL and Gloo sends a control message before data, as trainers do by RPC: here one over Gloo and
loopback, so that its cost is a lower bound. Standard library and torch (>= 2.2), Python >= 3.9.
"""

import base64
import json

import sync_disk
import torch
import torch.distributed as dist

FIRST = 504  # bytes of a message that go with its length
LARGE = 1 << 20  # bytes: below it the launch of a copy costs more than the copy (H200: 9 us a launch)


class PeerStopped(RuntimeError):
    """Another rank failed and reported its own error; read that one."""


def together(action=lambda: None, *args):
    """Run ``action`` on this rank and wait for the other ranks. Raises this rank's own exception, or
    PeerStopped if another rank failed."""
    failure = None
    try:
        action(*args)
    except Exception as error:  # raised again below, once the others know
        failure = error
    code = torch.tensor([1 if failure else 0])
    try:
        dist.all_reduce(code, op=dist.ReduceOp.MAX)
    finally:
        if failure:
            raise failure
    if int(code):
        raise PeerStopped("another rank stopped")


def tell(sync, message):
    """The trainer's JSON message, on every rank. A message of at most 504 bytes takes one send a rank, a
    longer one two."""
    text = json.dumps(message).encode() if sync.rank == 0 else b""
    first = _to_each(sync, len(text).to_bytes(8, "little") + text[:FIRST].ljust(FIRST))
    length = int.from_bytes(first[:8], "little")
    rest = _to_each(sync, text[FIRST:] or bytes(length - FIRST)) if length > FIRST else b""
    return json.loads((first[8:] + rest)[:length]) if sync.rank else message


def _to_each(sync, data):
    """Send the trainer's bytes to each engine and return them. Gloo's broadcast wakes threads of its own:
    0.3 to 0.5 ms more (torch 2.11)."""
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for sent in (
        [dist.isend(tensor, other) for other in range(1, sync.size)]
        if sync.rank == 0
        else [dist.irecv(tensor, 0)]
    ):
        sent.wait()
    return bytes(tensor.tolist()) if sync.rank else data


def announce(sync, clock, indices):
    """Names and shapes of these tensors, sent by the trainer and returned on every rank."""
    with clock.host("control" if sync.rank == 0 else "wait"):
        return tell(sync, [[sync.names[i], sync.shapes[i]] for i in indices])


def acknowledge(sync, clock):
    """The trainer waits until every engine has reported that it is done."""
    with clock.host("control"):
        for other in range(1, sync.size) if sync.rank == 0 else [0]:
            (dist.send if sync.rank else dist.recv)(torch.zeros(1), other)


def per_tensor(sync, clock):
    """A control message, a broadcast and an acknowledgement for each tensor, as TRL's server mode and
    OpenRLHF do."""
    for i in range(len(sync.sizes)):
        announce(sync, clock, [i])
        _send(sync, clock, [i])
        clock.notice("wire")
        acknowledge(sync, clock)


def listed(sync, clock):
    """A control message for a list of tensors of a bucket's size, then their broadcasts one by one
    (AReaL)."""
    for bucket in sync.buckets:
        announce(sync, clock, bucket)
        _send(sync, clock, bucket)


def _send(sync, clock, bucket):
    """Send tensors directly from and to their memory, or through a buffer if they have to be cut or pass
    through the CPU."""
    if not sync.staged:
        # once a list: to time each of 300 broadcasts took a sixth of the sync (H200)
        with clock.queued("wire", sync.wire):
            for i in bucket:
                dist.broadcast(sync.views[i], 0, group=sync.data)
    else:
        sizes = [sync.sizes[i] for i in bucket]
        for i, part in zip(bucket, sync.stage[0][: sum(sizes)].split(sizes)):
            if sync.rank == 0:
                with clock.queued("gather", sync.wire):
                    part.copy_(sync.views[i], non_blocking=True)
            with clock.queued("wire", sync.wire):
                dist.broadcast(part, 0, group=sync.data)
            if sync.rank:
                with clock.queued("load", sync.wire):
                    sync.views[i].copy_(sync.own(i, part), non_blocking=True)


def flat(sync, clock):
    """One broadcast a bucket, from two buffers in turn: over NCCL the next is packed, and the last unpacked,
    while one is on the wire.

    From pinned memory (nccl-pinned) the bucket is one copy to the GPU instead of a pack.
    """
    free, at, side = [None, None], 0, sync.side
    for k, bucket in enumerate(sync.buckets):
        sizes, here = [sync.sizes[i] for i in bucket], k % 2
        buffer = sync.stage[here][: sum(sizes)]
        announce(sync, clock, bucket)
        if sync.rank == 0:
            after(side, free[here])
            with clock.queued("gather" if sync.pinned is not None or sync.through_cpu else "pack", side):
                sources = (
                    [sync.pinned[at : at + len(buffer)]]
                    if sync.pinned is not None
                    else [sync.views[i] for i in bucket]
                )
                for part, source in zip(buffer.split([len(s) for s in sources]), sources):
                    part.copy_(source, non_blocking=True)
            after(sync.wire, done(side))
        else:
            after(sync.wire, free[here])
        with clock.queued("wire", sync.wire):
            dist.broadcast(buffer, 0, group=sync.data)
        free[here] = done(sync.wire)
        if sync.rank:
            after(side, free[here])
            with clock.queued("load", side):
                for i, part in zip(bucket, buffer.split(sizes)):
                    sync.views[i].copy_(sync.own(i, part), non_blocking=True)
            free[here] = done(side)
        at += len(buffer)


def done(stream):
    """An event behind all work queued on ``stream``; None without a stream (CPU)."""
    return stream.record_event() if stream else None


def after(stream, event):
    """Let ``stream`` wait for ``event``; nothing to do if either is None."""
    if stream and event:
        stream.wait_event(event)


def ipc(sync, clock):
    """The engines copy from the trainer's own memory, with handles sent once for all tensors (ipc-direct) or
    once a tensor and sync."""
    once = sync.args.method == "ipc-direct"
    for group in [range(len(sync.sizes))] if once else [[i] for i in range(len(sync.sizes))]:
        with clock.host("control" if sync.rank == 0 else "wait"):
            new = [i for i in group if not once or i not in sync.opened]
            handles = tell(sync, [handle(sync.views[i]) for i in new] if sync.rank == 0 else None)
        with clock.host("control"):
            sync.opened.update(zip(new, map(opened, handles) if sync.rank else handles))
        if sync.rank:
            _copy(sync, clock, group)
        clock.notice("wire")
        acknowledge(sync, clock)


def _copy(sync, clock, group):
    """All tensors of ``group`` from the trainer's memory: large ones in two streams, as one has gaps between
    copies, and the largest first, so that both end together; small ones at once. Qwen2.5-7B, H200: 7.33 ms;
    as they come 7.40, in one stream 7.89, one flat copy 7.15."""
    large, small = (
        [i for i in sorted(group, key=lambda i: -sync.sizes[i]) if (sync.sizes[i] >= LARGE) is big]
        for big in (True, False)
    )
    for stream, part in ((sync.wire, large[::2]), (sync.side, large[1::2])):
        with clock.queued("wire", stream):
            for i in part:
                sync.views[i].copy_(sync.own(i, sync.opened[i]), non_blocking=True)
            if small and stream is sync.wire:
                torch._foreach_copy_(
                    [sync.views[i] for i in small],
                    [sync.own(i, sync.opened[i]) for i in small],
                    non_blocking=True,
                )


def ipc_flat(sync, clock):
    """Buckets packed into two buffers that the engines opened once, and copied out of them."""
    for k, bucket in enumerate(sync.buckets):
        sizes = [sync.sizes[i] for i in bucket]
        if sync.rank == 0:
            with clock.queued("pack", sync.wire):
                for part, i in zip(sync.stage[k % 2][: sum(sizes)].split(sizes), bucket):
                    part.copy_(sync.views[i], non_blocking=True)
            clock.notice("pack")
        # the message of a bucket also says that the one before last is free
        with clock.host("control" if sync.rank == 0 else "wait"):
            handles = tell(
                sync, [handle(s) for s in sync.stage] if sync.rank == 0 and not sync.opened else []
            )
            clock.wait()
        acknowledge(sync, clock)
        with clock.host("control"):
            sync.opened.update(enumerate(map(opened, handles) if sync.rank else handles))
        if sync.rank:
            with clock.queued("wire", sync.wire):
                for part, i in zip(sync.opened[k % 2][: sum(sizes)].split(sizes), bucket):
                    sync.views[i].copy_(sync.own(i, part), non_blocking=True)


def handle(view):
    """A JSON document with which another process maps the memory of this CUDA tensor (torch 2.2 to 2.13:
    UntypedStorage._share_cuda_)."""
    packed = [
        {"b": base64.b64encode(x).decode()} if isinstance(x, bytes) else x
        for x in view.untyped_storage()._share_cuda_()
    ]
    return {"storage": packed, "at": view.storage_offset(), "n": view.numel()}


def opened(message):
    """The bytes behind a ``handle`` of another process, as a uint8 tensor on the same GPU."""
    storage = torch.UntypedStorage._new_shared_cuda(
        *(base64.b64decode(x["b"]) if isinstance(x, dict) else x for x in message["storage"])
    )
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[
        message["at"] : message["at"] + message["n"]
    ]


# name -> its way; sync/methods.py lists these names, those of sync_delta.py and sync_reshard.py, and
# nccl-one-gpu
METHODS = {
    "nccl-flat": flat,
    "nccl-list": listed,
    "nccl-per-tensor": per_tensor,
    "nccl-pinned": flat,
    "ipc-direct": ipc,
    "ipc-flat": ipc_flat,
    "ipc-per-tensor": ipc,
    "fast-disk": sync_disk.fast,
    "fast-disk-shm": sync_disk.fast,
    "gloo-flat": flat,
    "gloo-per-tensor": per_tensor,
    "disk-shm": sync_disk.disk,
    "disk": sync_disk.disk,
}
# those that fill two buffers of a bucket's size in turn; gloo-delta does so in its first sync
IN_BUCKETS = {"gloo-delta", *(name for name, way in METHODS.items() if way in (flat, ipc_flat))}
