"""Models of the evidence study, in the stages of docs/results/plan.md: pilot, causal, main, further."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MLM, MLM_801010, MAE_LM = "MLM", "MLM, 80/10/10", "MAE-LM"
HALF_MASKS, ALL_MASKS = (f"MAE-LM, {part} [MASK] tokens in its encoder" for part in ("half of the", "all"))
FRACTIONS = {0.0: MAE_LM, 0.5: HALF_MASKS, 1.0: ALL_MASKS}
"""Models by the fraction of ``[MASK]`` tokens that the encoder sees."""
DEEP_MLM = "MLM, 6 layers"
DEEP_MLM_LAYER = 4
"""Layer at which :data:`DEEP_MLM` is probed: the number of encoder layers of the others."""
CAUSAL = (MLM, MAE_LM, ALL_MASKS)
FURTHER_CAUSAL = (HALF_MASKS, DEEP_MLM)
MAE_LM_OWN_RATE = "MAE-LM, at its own learning rate"
MLM_OTHER_RATE = "MLM, at MAE-LM's learning rate"

COMMON = {
    "--task": "masked_autoencoder_lm",
    "--criterion": "masked_autoencoder_lm",
    "--tokens-per-sample": "128",
    "--sample-break-mode": "complete_doc",
    "--skip-invalid-size-inputs-valid-test": None,
    "--batch-size": "32",
    "--required-batch-size-multiple": "1",
    "--update-freq": "1",
    "--optimizer": "fused_adamw",
    "--adam-betas": "(0.9,0.98)",
    "--adam-eps": "1e-6",
    "--weight-decay": "0.01",
    "--clip-norm": "2.0",
    "--dropout": "0",
    "--attention-dropout": "0",
    "--relative-bias-init": "neighbours",
}
"""Options of ``fairseq-train`` that all models share."""
_BF16 = {"--autocast": "bf16"}
"""Of the pilot and of the causal test. The main runs are in float32, which CPUs without bfloat16 are faster in."""

PILOT_LEARNING_RATES = ("5e-4", "1e-3", "2e-3")
PILOT_LEARNING_RATE = "1e-3"
OUTWARDS = {"5e-4": "2.5e-4", "2e-3": "4e-3"}
"""Learning rate that is added if the best one lies at the edge."""
FACTORS = {
    "normal bias": {"--relative-bias-init": "normal"},
    "dropout 0.1": {"--dropout": "0.1", "--attention-dropout": "0.1"},
    "1 decoder layer": {"--decoder-layers": "1"},
}
"""The pilot's changes of one factor, apart from the learning rate."""


@dataclass(frozen=True)
class Arm:
    """A model to train with several seeds.

    Args:
        model: the model; figures and hypotheses refer to it.
        options: its options of ``fairseq-train``, which take precedence over :data:`COMMON`.
        change: of a pilot run, the factor that differs from the baseline.
        branch_of: of a decay branch, the main run that it continues.
    """

    model: str
    options: Mapping[str, str | None]
    change: str = ""
    branch_of: "Arm | None" = None

    @property
    def title(self) -> str:
        return f"{self.model}; {self.change}" if self.change else self.model

    @property
    def directory(self) -> str:
        """Name of a directory: the title with dashes in place of everything but letters, digits and points."""
        words = "".join(letter if letter.isalnum() or letter == "." else " " for letter in self.title)
        return "-".join(words.split())


_ARCHITECTURES = {MLM: {"--arch": "mae_lm_roberta_tiny"}, MAE_LM: {"--arch": "mae_lm_tiny"}}


def pilot_arms() -> list[Arm]:
    """Return the pilot's models: one factor at a time, for the MLM and MAE-LM."""
    rates = [rate for rate in PILOT_LEARNING_RATES if rate != PILOT_LEARNING_RATE]
    return [pilot_arm(model, PILOT_LEARNING_RATE) for model in _ARCHITECTURES] + [
        *(pilot_arm(model, rate) for rate in rates for model in _ARCHITECTURES),
        *(
            Arm(model, options | _BF16 | {"--lr": PILOT_LEARNING_RATE} | changed, change)
            for change, changed in FACTORS.items()
            for model, options in _ARCHITECTURES.items()
            if model == MAE_LM or "--decoder-layers" not in changed
        ),
    ]


def pilot_arm(model: str, rate: str) -> Arm:
    """Return a pilot run of a learning rate."""
    return Arm(model, _ARCHITECTURES[model] | _BF16 | {"--lr": rate}, f"learning rate {rate}")


def causal_arms(learning_rate: str, models: Sequence[str] = CAUSAL) -> list[Arm]:
    """Return models of the causal test: those of hypotheses, or :data:`FURTHER_CAUSAL`."""
    rate = _BF16 | {"--lr": learning_rate}
    mlm, mae_lm = (_ARCHITECTURES[model] | rate for model in (MLM, MAE_LM))
    arms = [
        Arm(MLM, mlm),
        *(Arm(model, mae_lm | {"--mask-in-encoder": str(fraction)}) for fraction, model in FRACTIONS.items()),
        Arm(DEEP_MLM, mlm | {"--encoder-layers": "6"}),
    ]
    return [arm for arm in arms if arm.model in models]


def main_arms(learning_rate: str, own_rate: str) -> list[Arm]:
    """Return the models of the main runs.

    Args:
        learning_rate: the rate of all models, the best for the MLM.
        own_rate: the best rate for MAE-LM; if it differs, both models are trained at it as well.
    """
    rate = {"--lr": learning_rate}
    replaced = {"--leave-unmasked-prob": "0.1", "--random-token-prob": "0.1"}
    arms = [
        Arm(MLM, _ARCHITECTURES[MLM] | rate),
        Arm(MLM_801010, _ARCHITECTURES[MLM] | rate | replaced),
        Arm(MAE_LM, _ARCHITECTURES[MAE_LM] | rate),
    ]
    if own_rate != learning_rate:
        others = {MAE_LM: MAE_LM_OWN_RATE, MLM: MLM_OTHER_RATE}
        arms += [Arm(name, _ARCHITECTURES[model] | {"--lr": own_rate}) for model, name in others.items()]
    return arms


def branch_arms(learning_rate: str) -> list[Arm]:
    """Return the decay branches of the main runs, without that of MAE-LM at its own learning rate."""
    arms = main_arms(learning_rate, learning_rate)
    return [Arm(f"{arm.model}, decay at half way", arm.options, branch_of=arm) for arm in arms]
