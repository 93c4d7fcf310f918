"""Training steps with their time and memory, the same for every model."""

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    """A model in training.

    Args:
        spec: the process's options, see :class:`~benchmark.processes.Process`.
        model: the model to train, on the CPU.
        collate: converts tokens and masks, [B, T] each, to the batch that ``loss`` takes.
        loss: returns, for the model and a batch, the sum or the mean of the loss over the predicted tokens, the divisor
            that gives the mean, and the number of predicted tokens.
        optimizer: creates the optimizer; None for torch's fused AdamW.
        autocast: whether half precision is torch.autocast around the loss, with a GradScaler for float16; False for
            models and optimizers that have their own.
    """

    def __init__(
        self,
        spec: dict,
        model: nn.Module,
        collate: Callable,
        loss: Callable,
        optimizer: Callable | None = None,
        autocast: bool = True,
    ):
        self.device = torch.device(spec["device"])
        self.directory = Path(spec["directory"])
        self.collate = collate
        self.loss = loss
        self.model = model.to(self.device).train()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = (optimizer or fused_adamw)(parameters)
        self.optimizer.zero_grad()  # fairseq's FP16Optimizer sets its first scale here
        self.autocast = HALF.get(spec["precision"]) if autocast else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.autocast is torch.float16)
        self.batches = {}

    def train(self, batch: str, steps: int) -> list[dict]:
        """Run some steps on a batch; return the seconds, loss in nats and number of predicted tokens of each."""
        sample = self._batch(batch)
        # On a CPU the allocator keeps memory between steps. A GPU is shared with the other processes and its memory was
        # released, so a step that is not timed allocates it again.
        if self.device.type == "cuda":
            self._step(sample)
        done = [self._step(sample) for _ in range(steps)]
        if self.device.type == "cuda":
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
        return done

    def memory(self, batch: str, _steps: int) -> int:
        """Run another step and return its peak memory, in bytes."""
        sample = self._batch(batch)
        if self.device.type == "cuda":
            self._step(sample)
            torch.cuda.reset_peak_memory_stats()
            self._step(sample)
            return torch.cuda.max_memory_allocated()
        self.optimizer.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self._forward_backward(sample)
        self._update()
        return self._resident_bytes() + _peak_allocated(profile)

    def operators(self, batch: str, steps: int) -> dict[str, float]:
        """Run some steps under the profiler; return the seconds per step of each operator, its callees excluded."""
        sample = self._batch(batch)

        def run() -> None:
            for _ in range(steps):
                self._step(sample)

        seconds = operator_seconds(run, self.device.type == "cuda")
        return {name: own / steps for name, own in seconds.items()}

    def _batch(self, name: str):
        if name not in self.batches:
            with np.load(self.directory / name) as arrays:
                tokens, masked = torch.from_numpy(arrays["tokens"]), torch.from_numpy(arrays["masked"])
            self.batches[name] = _to(self.collate(tokens, masked), self.device)
        return self.batches[name]

    def _step(self, sample) -> dict:
        self._wait()
        start = time.perf_counter()
        loss, predicted = self._forward_backward(sample)
        self._update()
        self._wait()
        return {"seconds": time.perf_counter() - start, "loss": float(loss), "predicted": int(predicted)}

    def _forward_backward(self, sample) -> tuple[Tensor, int]:
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            loss, divisor, predicted = self.loss(self.model, sample)
        loss = loss / divisor
        backward = getattr(self.optimizer, "backward", Tensor.backward)  # fairseq's optimizers scale the loss
        backward(self.scaler.scale(loss))
        return loss.detach(), predicted

    def _update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _resident_bytes(self) -> int:
        """Return the bytes of weights and optimizer state, which exist before the step."""
        state = self.optimizer.state_dict()["state"]
        tensors = [value for values in state.values() for value in values.values() if isinstance(value, Tensor)]
        tensors += getattr(self.optimizer, "fp32_params", [])  # the copy that float16 training updates
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers(), *tensors))


def operator_seconds(function: Callable[[], object], on_gpu: bool = False) -> dict[str, float]:
    """Call a function under the profiler; return the seconds of each operator, its callees excluded.

    They are seconds of the GPU's kernels, or of one thread of the CPU.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        function()
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # On a GPU, the kernels are also events; their time is that of the operators that launch them.
    operators = [event for event in profile.key_averages() if event.device_type == DeviceType.CPU]
    return {event.key: getattr(event, own) / 1e6 for event in operators if getattr(event, own)}


def fused_adamw(parameters: list) -> torch.optim.Optimizer:
    """Return the optimizer of all subjects."""
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True)


def _to(sample, device: torch.device):
    """Move a batch to a device; named tuples become plain ones, as in fairseq."""
    if isinstance(sample, Tensor):
        return sample.to(device)
    if isinstance(sample, dict):
        return {key: _to(value, device) for key, value in sample.items()}
    if isinstance(sample, tuple):
        return tuple(_to(value, device) for value in sample)
    return sample


def _peak_allocated(profile: torch.profiler.profile) -> int:
    """Return the peak of the bytes allocated since the profile began, from its memory events."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    events = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    # The events' own totals are wrong here: they continue from the last profile and miss everything freed in between.
    return max(itertools.accumulate(event["args"]["Bytes"] for event in events), default=0)
