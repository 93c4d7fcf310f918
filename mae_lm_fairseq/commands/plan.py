"""Estimate what pretraining an architecture costs, beside the RoBERTa preset of its size with 15 % of the text masked.

Sequences are assumed to be full. FLOPs are those of matrix products, by formula. Memory is that of tensors, counted
while the step runs on fake tensors, in half precision with the fused attention kernel (sdpa needs more), in fp32 with
scores written out (sdpa needs less); the allocator and CUDA itself need some more. MFU is the fraction of the data
sheet's FLOP/s that the run reaches: steps of base were measured at 23 to 25 % on an H100, and NVIDIA's own BERT-large
reached 25 % on a V100 (30.1 sequences of 1.02 TFLOP per second at 512 tokens, DeepLearningExamples, 2019). Training
logs yours as mfu. The exchange of gradients is assumed to hide behind the computation.

Example:
    mae-lm plan mae_lm_base --devices 8 --device-kind a100-80 --precision bf16
"""

import json
from dataclasses import dataclass

from mae_lm_fairseq.cost.planned_run import PlannedRun
from mae_lm_fairseq.cost.planner import as_json, plan_cost, table
from mae_lm_fairseq.training.settings import recipe
from mae_lm_fairseq.utils.command_line import Probability


@dataclass(frozen=True, kw_only=True)
class Options(PlannedRun):
    """Options of the command.

    Attributes:
        mask_prob: fraction of the tokens that are masked and predicted (default: the recipe's).
        json: print JSON instead of a table.
    """

    mask_prob: Probability | None = None
    json: bool = False

    def __post_init__(self):
        if self.mask_prob is None:
            object.__setattr__(self, "mask_prob", recipe(self.preset)["mask_prob"].value)
        super().__post_init__()


def main(options: Options) -> None:
    """Run the command."""
    planned, roberta = plan_cost(options), plan_cost(options.roberta())
    if options.json:
        print(json.dumps(as_json(planned, roberta), indent=2))
    else:
        print(table(planned, roberta))
