"""How a network computes: its attention backend, compilation, and what training on a device needs of torch."""

import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from mae_lm_fairseq.core.attention_backends import AttentionBackend, fastest_backend, problem_of_fused
from mae_lm_fairseq.core.autoencoder import MaskedAutoencoder
from mae_lm_fairseq.core.heads import LMHead
from mae_lm_fairseq.core.kernels import operator
from mae_lm_fairseq.models.architectures import Autocast
from mae_lm_fairseq.models.kernel_comparison import TOLERANCES, difference_from_eager, difference_of_loss
from mae_lm_fairseq.utils.allocator import keep_freed_memory
from mae_lm_fairseq.utils.compilation_cache import keep_compiled_code
from mae_lm_fairseq.utils.errors import UserError, first_line

logger = logging.getLogger(__name__)


class BackendChoice:
    """Chooses the attention backend of a network for a device and for training or evaluation.

    The fused kernel is for training only, and is compared with eager attention before it trains.
    """

    def __init__(self, network: MaskedAutoencoder, backend: AttentionBackend, autocast: Autocast, is_compiled: bool):
        self.network = network
        self.backend = AttentionBackend.fused if is_compiled else backend
        self.autocast = autocast
        self.is_compiled = is_compiled
        for stack in network.stacks():
            stack.compiles_layers = is_compiled
        self.compares_kernel = False
        self.resolved_for: tuple[str, bool] | None = None

    def begin_training(self, device: torch.device, training: bool) -> None:
        """Prepare for training on a device: on a CPU memory settings of the process, on a GPU how torch computes.

        Raises:
            UserError: if the attention backend does not train on that device. Raised here because an error in the first
                update makes the trainer write a ``crash.pt``.
        """
        self.compares_kernel = True
        if self.is_compiled or device.type == "cuda":  # whose kernels Triton compiles
            keep_compiled_code(Path(operator.__file__))
        self.resolved_for = None
        self.resolve(device, training)
        if device.type == "cpu":
            keep_freed_memory()
            if self.is_compiled:
                logger.warning(
                    "--compile does not pay on CPUs, where attention of eager layers is faster; leave it out"
                )
        if device.type == "cuda":
            with warnings.catch_warnings():
                # torch 2.9 deprecates this function, and its successor breaks torch.compile there (pytorch 166387).
                warnings.simplefilter("ignore")
                torch.set_float32_matmul_precision("high")
            # cuDNN plans each new shape of a batch, and has returned gradients that are NaN (pytorch 196678).
            torch.backends.cuda.enable_cudnn_sdp(False)
            if any(stack.attention_backend is AttentionBackend.fused for stack in self.network.stacks()):
                self._check_kernels(device, training)

    def resolve(self, device: torch.device, training: bool) -> None:
        """Set the backend of all stacks for a device, and for training or evaluation.

        Raises:
            UserError: if ``--attention-backend`` does not train on that device.
        """
        if self.resolved_for == (device.type, training):
            return
        backend = self.backend
        is_fused = backend is AttentionBackend.fused
        if is_fused and training and (problem := problem_of_fused(device)):
            raise UserError(f"--attention-backend fused {problem}")
        is_first = self.resolved_for is None or self.resolved_for[0] != device.type
        self.resolved_for = device.type, training
        if backend is AttentionBackend.auto or (is_fused and not training):
            # In float32, the speed of the fused kernel was never measured.
            may_fuse = training and self.compares_kernel and self._product_dtype() is not torch.float32
            backend = fastest_backend(device, may_fuse)
            if is_first:
                logger.info("attention backend on %s: %s", device.type, backend.value)
            if device.type == "cuda" and may_fuse and (problem := problem_of_fused(device)):
                logger.warning("attention backend: %s, because fused %s", backend.value, problem)
        for stack in self.network.stacks():
            stack.attention_backend = backend

    def _check_kernels(self, device: torch.device, training: bool) -> None:
        """Compare the kernels with PyTorch's operators, and do without one that does not work here.

        Raises:
            UserError: if attention must be ``fused`` and does not work.
        """
        dtype, head = self._product_dtype(), self.network.lm_head
        stacks = self.network.stacks()
        problem = _problem(lambda: [difference_from_eager(stack, dtype) for stack in stacks], dtype)
        if problem and self.backend is AttentionBackend.fused:
            raise UserError(f"--attention-backend fused {problem}; use sdpa, without --compile")
        if problem:
            logger.warning("attention backend: sdpa, because fused %s", problem)
            self.backend = AttentionBackend.sdpa
            self.resolved_for = None
            self.resolve(device, training)
        elif type(head) is LMHead:
            from mae_lm_fairseq.core.kernels.fused_loss import cross_entropy_  # needs triton

            problem = _problem(lambda: [difference_of_loss(cross_entropy_, head, dtype)], dtype)
            head.loss_kernel = None if problem else cross_entropy_
            if problem:
                logger.warning("the loss is computed without its kernel, which %s", problem)

    def _product_dtype(self) -> torch.dtype:
        weight = self.network.encoder.embed_tokens.weight
        return weight.dtype if self.autocast is Autocast.none else torch.bfloat16


def _problem(differences: Callable[[], list[float]], dtype: torch.dtype) -> str | None:
    """Return why a kernel cannot be used, by its differences from PyTorch's operators; None if it can."""
    try:
        difference = float(torch.tensor(differences()).max())  # NaN if one is, unlike Python's max
    except Exception as problem:  # triton's, of many classes, such as where there is no C compiler
        return f"fails on this GPU ({first_line(problem)})"
    tolerance = TOLERANCES[dtype]
    if not difference <= tolerance:
        excess = f"by {difference:.1%} on this GPU, more than rounding ({tolerance:.0%})"
        return f"differs from PyTorch's operators {excess}"
    logger.info("a kernel equals PyTorch's operators within %.2f %%", 100 * difference)
    return None
