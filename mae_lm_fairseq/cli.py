"""The command line: ``mae-lm VERB``, or ``python -m mae_lm_fairseq VERB``."""

import importlib
import inspect
import sys
from typing import Any

from mae_lm_fairseq.measures.registry import MEASURES, own_measures
from mae_lm_fairseq.training.user_directory import OPTION, import_user_directory, take_user_directory
from mae_lm_fairseq.utils.command_line import parse
from mae_lm_fairseq.utils.errors import errors_end_the_program, meant
from mae_lm_fairseq.utils.signals import signals_end_the_program
from mae_lm_fairseq.utils.versions import package_version

_DRIVER = "finetuning.driver"
_MEASURING = "measures.verb"
VERBS = {
    "quickstart": ("study.quickstart", "train two tiny models, compare them in a report"),
    "prepare": ("commands.prepare", "turn text into a tokenizer and a data-bin"),
    "pretrain": ("commands.pretrain", "pretrain an architecture with its recipe", "training.pretrain"),
    "finetune glue": ("finetuning.options:GlueOptions", "fine-tune on a GLUE task", _DRIVER),
    "finetune squad": ("finetuning.options:SquadOptions", "fine-tune on SQuAD 1.1 or 2.0", _DRIVER),
    "finetune classification": ("finetuning.options:ClassificationOptions", "fine-tune on your labelled text", _DRIVER),
    "finetune tagging": ("finetuning.options:TaggingOptions", "fine-tune on labelled words: CoNLL files", _DRIVER),
    "predict": ("commands.predict", "predict labels, scores or answers with a model"),
    "rank": ("measures.rank", "measure effective ranks, layer by layer", _MEASURING),
    "probe": ("measures.probe", "probe frozen hidden states for word labels", _MEASURING),
    "minimal-pairs": ("measures.minimal_pairs", "score grammatical minimal pairs", _MEASURING),
    "retrieval": ("measures.retrieval", "find the passages that answer questions", _MEASURING),
    "evaluate": ("measures.evaluation", "masked loss and pseudo-perplexity on a text", _MEASURING),
    "study": ("commands.study", "compare models over seeds, as a plan says"),
    "export": ("commands.export", "export a model to Hugging Face transformers"),
    "import": ("commands.import_", "import an encoder of transformers or fairseq"),
    "adapt": ("study.adapt", "train a pretrained model further on your text"),
    "average": ("commands.average", "average the weights of checkpoints"),
    "bundle": ("commands.bundle", "bundle a checkpoint with its tokenizer"),
    "plan": ("commands.plan", "estimate FLOPs, memory and time of pretraining"),
    "doctor": ("commands.doctor", "check the environment, or files for damage"),
}
"""The module of each verb, whose docstring is the help, with ``Options`` and ``main``, or its options; and a summary.

If ``main`` is in another module, that is the third one. Verbs that measure share one; and where the work needs torch
and the options do not, wrong options and ``--help`` do not wait for torch.
"""
GROUPS = {
    "Begin": ("quickstart", "doctor"),
    "Pretrain, and adapt what others have pretrained": ("prepare", "plan", "pretrain", "adapt", "average"),
    "Fine-tune, and predict": (*(verb for verb in VERBS if verb.startswith("finetune ")), "predict"),
    "Measure and compare": ("evaluate", "rank", "probe", "minimal-pairs", "retrieval", "study"),
    "Share": ("bundle", "export", "import"),
}
"""The verbs by what a person wants."""
CODE = f"{OPTION} DIR, which every verb takes, imports a directory of your own code (docs/own-ideas.md)."
"""Help on the option of all verbs."""


def overview() -> str:
    """Return the help on all verbs."""
    lines = ["usage: mae-lm VERB [arguments], or mae-lm --version"]
    for title, verbs in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {verb:25}{VERBS[verb][1]}" for verb in verbs]
    if own_measures():
        lines += ["", "Yours:"]
    for verb, measure in own_measures().items():
        summary, *_ = inspect.getdoc(measure).split("\n")
        lines.append(f"  {verb:25}{summary}")
    return "\n".join([*lines, "", "mae-lm VERB --help describes the arguments of a verb.", CODE])


def run(verb: str, words: list[str], program: str | None = None) -> int | None:
    """Run a verb with the words of its command line, and return its exit code; a program may give it another name."""
    sys.argv = [f"mae-lm {verb}", *words]  # fairseq looks for options here
    options = parsed(verb, words, program)
    if verb != "doctor":  # which drops what imported packages say, and runs without tqdm
        from mae_lm_fairseq.utils.output import configure_logging

        configure_logging()
    if verb in VERBS:
        options_module, _, *main_module = VERBS[verb]
        [module] = main_module or [options_module]
    else:
        module = _MEASURING
    return _object(module).main(options)


def parsed(verb: str, words: list[str], program: str | None = None) -> Any:
    """Return the options of a verb that the words of its command line state; end the program if they are wrong."""
    documented = _object(VERBS[verb][0]) if verb in VERBS else _registered(verb)
    description, _, _ = inspect.getdoc(documented).partition("\n\nAttributes:")
    description += f"\n\n{CODE}"
    options = getattr(documented, "Options", documented)
    return parse(options, words, description, program or f"mae-lm {verb}")


def _registered(measure: str) -> Any:
    """Return the options of the verb of a measure that a module outside of the package has registered."""
    from mae_lm_fairseq.measures.verb import verb_of

    return verb_of(MEASURES[measure])


def _object(path: str) -> Any:
    module_name, _, name = path.partition(":")
    module = importlib.import_module(f"mae_lm_fairseq.{module_name}")
    return getattr(module, name) if name else module


def main() -> int | None:
    """Run the verb that the program's arguments begin with, and return its exit code."""
    if sys.flags.optimize > 1:
        advice = "unset PYTHONOPTIMIZE, or set it to 1"
        print(f"error: this Python removes docstrings, from which mae-lm makes its help; {advice}", file=sys.stderr)
        return 2
    with errors_end_the_program(), signals_end_the_program():
        directory, words = take_user_directory(sys.argv[1:])
        if directory is not None:
            import_user_directory(directory)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"mae-lm {package_version('mae_lm_fairseq')}")
        return 0
    for length in (2, 1):
        verb = " ".join(words[:length])
        if verb in VERBS:
            with errors_end_the_program(), signals_end_the_program():
                return run(verb, words[length:])
    kinds = [verb for verb in VERBS if verb.split()[0] == words[0]]
    if kinds and words[1:] in (["-h"], ["--help"]):
        print("\n".join(f"mae-lm {verb:25}{VERBS[verb][1]}" for verb in kinds))
        return 0
    if words[0] in own_measures():
        with errors_end_the_program(), signals_end_the_program():
            return run(words[0], words[1:])
    advice = f"choose {' or '.join(kinds)}" if kinds else "mae-lm --help lists the verbs, and --user-dir adds yours"
    question = meant(words[0], [*VERBS, *own_measures()])
    print(f"error: unknown verb {words[0]!r}{question}; {advice}", file=sys.stderr)
    return 2
