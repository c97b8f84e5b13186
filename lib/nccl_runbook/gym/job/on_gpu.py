"""What goes wrong, and what does not, on the GPU of a rank."""

import os
import time
from typing import Any

from loop import Loop, Rows

GIB = 1 << 30


class OnGpu(Loop):
    """What goes wrong, and what does not, on the GPU of a rank."""

    def fills(self) -> None:
        """Allocate more than the GPU has."""
        self.until_trouble()
        kept = [self.block(16) for _ in range(64)]
        self.dist.all_reduce(kept[0])

    def block(self, gib: float) -> Any:
        """So many GiB of the GPU."""
        return self.torch.empty(int(gib * GIB), dtype=self.torch.uint8, device=self.device)

    def holds(self) -> None:
        """No rank: another program that holds most of the GPU for a minute."""
        free, _ = self.torch.cuda.mem_get_info()
        kept = self.block(0.9 * free / GIB)
        (self.folder / "held").touch()
        time.sleep(60)
        del kept

    def needs_half(self) -> None:
        """Allocate half of the GPU once the other program has its part."""
        while not (self.folder / "held").exists():
            time.sleep(0.1)
        with self.between_steps():
            self.block(self.torch.cuda.get_device_properties(0).total_memory / GIB / 2)

    def fraction(self) -> None:
        """A limit of the program itself on its memory, which a batch exceeds."""
        self.join()
        self.torch.cuda.set_per_process_memory_fraction(0.02)
        self.loop(3)
        self.block(16)

    def label(self) -> None:
        """A label that the model has no class for."""
        self.until_trouble()
        scores = self.torch.randn(4, 10, requires_grad=True)
        labels = self.torch.tensor([1, 3, 10, 2])
        self.torch.nn.functional.cross_entropy(scores, labels).backward()
        print(f"validation loss {scores.grad.sum().item():.4f}", flush=True)

    def other_index(self) -> None:
        """Every rank takes a GPU that is not there."""
        self.torch.cuda.set_device(self.torch.cuda.device_count())
        self.until_trouble()

    def same_gpu(self) -> None:
        """Every rank takes the first GPU."""
        os.environ["LOCAL_RANK"] = "0"
        self.until_trouble()

    def workers_use_it(self) -> None:
        """Workers of the data loader are forked, and put their rows on the GPU."""
        self.until_trouble()
        rows = OnTheGpu(16)
        for batch in self.torch.utils.data.DataLoader(rows, batch_size=2, num_workers=1):
            self.step(batch)

    def on_cpu(self) -> None:
        """A tensor that was left on the CPU is given to NCCL."""
        self.until_trouble()
        self.dist.all_reduce(self.torch.ones(8, device="cpu"))

    def odd_type(self) -> None:
        """A type that NCCL does not have."""
        self.until_trouble()
        self.dist.all_reduce(self.torch.ones(8, dtype=self.torch.uint16))

    def mixed(self) -> None:
        """bfloat16 with autocast."""
        with self.training():
            with self.torch.autocast("cuda", dtype=self.torch.bfloat16):
                self.loop(100, 0.3)

    def smaller_batch(self) -> None:
        """A batch does not fit; the program halves it and goes on."""
        with self.before_the_end():
            gib = 512.0
            while gib > 1:
                try:
                    self.block(gib)
                    break
                except self.torch.OutOfMemoryError as error:
                    print(f"batch of {gib:.0f} GiB does not fit, trying half: {error}", flush=True)
                    gib /= 2
            self.loop(40, 0.05)
            print("training finished", flush=True)

    def copies(self) -> None:
        """Batches of pinned memory."""
        with self.training():
            rows = Rows(100)
            for batch in self.torch.utils.data.DataLoader(rows, batch_size=2, num_workers=2, pin_memory=True):
                time.sleep(0.2)
                self.step(batch)


class OnTheGpu(Rows):
    """Rows that lie on the GPU."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index).cuda()
