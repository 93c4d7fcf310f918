#!/usr/bin/env python3
"""Compare starts of a new decoder: random weights, and the encoder's last layers.

Adapts a model with mae-lm adapt's settings, with each start and seed, and measures the loss of the held-out text at the
same masked positions after 0, 100, 250 and 1,000 updates. If the encoder has no relative position bias, both starts are
also tried with such a bias in the decoder alone. A run that has ended is not repeated.

Example:
    scripts/benchmark/decoder_start.py mlm.pt --data-bin data-bin --train notes.txt --valid held-out.txt \
        --out compared --json decoder-start.json
"""

import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any

from mae_lm_fairseq.adapt import INITIAL, OWNED, as_objective, make_start, plan_of, workspace_of
from mae_lm_fairseq.checkpoints.bundle import write_bundle
from mae_lm_fairseq.checkpoints.conversion import OWN_BIAS, completed
from mae_lm_fairseq.checkpoints.reading import Pretrained
from mae_lm_fairseq.measures.evaluation import Loss
from mae_lm_fairseq.study.engine import complete
from mae_lm_fairseq.study.options import AdaptOptions
from mae_lm_fairseq.study.plan import Measure
from mae_lm_fairseq.training.keys import Products
from mae_lm_fairseq.utils.command_line import Argument, Count, Directory, Model, Options, OutputFile, parse
from mae_lm_fairseq.utils.errors import errors_end_the_program
from mae_lm_fairseq.utils.files import read_json, write_json
from mae_lm_fairseq.utils.versions import provenance

UPDATES = (0, 100, 250, 1000)
STARTS = ("random", "encoder")
BIASES = ("the encoder's", "own")
DECODER = "autoencoder.decoder."


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions(Options):
    """Options of the comparison.

    Attributes:
        model: the model to start from, which has no decoder.
        data_bin: for a checkpoint, data-bin with its dictionary and tokenizer.
        train: text to train on.
        valid: held-out text.
        updates: number of updates.
        batch_size: tokens per update.
        tokens_per_sample: maximum length of a sequence.
        seeds: number of seeds.
        out: output directory.
        json: JSON file for the results.
    """

    model: Model
    data_bin: Directory | None = None
    train: Annotated[str, Argument("PATH")]
    valid: Annotated[str, Argument("PATH")]
    updates: Count = 1000
    batch_size: Count = 8192
    tokens_per_sample: Count = 128
    seeds: Count = 3
    out: Directory
    json: OutputFile


def main(options: ComparisonOptions) -> None:
    """Run the comparison, and write the file after every run."""
    rows = []
    for seed, bias, start in product(range(1, options.seeds + 1), BIASES, STARTS):
        if (losses := run(options, start, bias, seed)) is None:
            continue
        rows.append({"decoder_position_bias": bias, "start": start, "seed": seed, "loss": losses})
        print(rows[-1], flush=True)
        described = {name: str(value) for name, value in vars(options).items() if name in ("updates", "batch_size")}
        write_json(options.json, provenance() | {"model": options.model.name, **described, "rows": rows})


def run(options: ComparisonOptions, start: str, bias: str, seed: int) -> dict[str, float] | None:
    """Return the loss in nats by the number of updates; None if the encoder has a bias, and the decoder has it, too."""
    out = options.out / f"{start}-{bias.split()[-1]}-seed{seed}"
    if (out / "losses.json").exists():
        return read_json(out / "losses.json")
    adaptation = AdaptOptions(
        model=options.model,
        data_bin=options.data_bin,
        train=(options.train,),
        valid=(options.valid,),
        out=out,
        objective="mae_lm",
        updates=options.updates,
        batch_size=options.batch_size,
        tokens_per_sample=options.tokens_per_sample,
        seed=seed,
    )
    products = Products(out, OWNED)
    model = as_objective(make_start(products, adaptation), adaptation)
    if bias == "own" and model.config.relative_buckets:
        return None
    options_of_bias = OWN_BIAS if bias == "own" else {"decoder_relative_buckets": model.config.relative_buckets}
    model = with_decoder(model, start, options_of_bias, seed)
    initial = products.make(INITIAL, [start, bias, seed], lambda path: write_bundle(model, path))
    measure = Measure("loss", "all", Loss(tokens=50_000, tokens_per_sample=128, mask_prob=0.15, seed=1))
    plan = plan_of(model, adaptation, [measure], tuple(one for one in UPDATES if 0 < one < options.updates))
    plan = replace(plan, models=(replace(plan.models[0], start=initial),))  # which is measured after 0 updates
    workspace = workspace_of(plan, adaptation)
    complete(workspace)
    values = workspace.values(workspace.training(plan.models[0], None, seed), measure)
    losses = {str(updates): found["loss"] for updates, found in values.items()}
    write_json(out / "losses.json", losses)
    return losses


def with_decoder(model: Pretrained, start: str, options: dict[str, Any], seed: int) -> Pretrained:
    """Return the model with a decoder of these options; what it does not get from the encoder is random."""
    config = replace(model.config, **options)
    without_bias = () if config.relative_buckets else f"{DECODER}relative_bias."
    dropped = DECODER if start == "random" else without_bias
    kept = {name: weight for name, weight in model.weights.items() if not name.startswith(dropped)}
    weights = completed(config, kept, len(model.symbols), seed)
    about = replace(model.about, untrained=())  # they are measured, too
    return replace(model, config=config, weights=weights, about=about)


if __name__ == "__main__":
    with errors_end_the_program():
        main(parse(ComparisonOptions, sys.argv[1:], __doc__, "decoder_start.py"))
